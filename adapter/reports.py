"""From the host's per-iteration reports to what may be loaded and saved.

Purpose: keep tokens, pages and the computed frontier of each request from deltas, and name chunks
for saving ahead of the forward that completes them (design rule 1). Sans-IO. Must not know:
sockets, streams. Runs in: the executor's thread, inside ``build_connector_meta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adapter.geometry import Geometry
from adapter.metadata import ConnectorMetadata, LoadOrder, SaveNames
from adapter.naming import name_chunks
from adapter.requests import RequestTable
from adapter.requeststate import RequestState


@dataclass
class _Draft:
    """Metadata in the making.

    Attributes:
        is_sliding: whether any group has a window, so that pages leave while a request lives.
    """

    geometry: Geometry
    is_sliding: bool
    new_pages: list[list[int]]
    alive: list[int] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)
    next_tokens: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    names: list[SaveNames] = field(default_factory=list)
    loads: list[LoadOrder] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    may_fire: bool = False

    @classmethod
    def of(cls, geometry: Geometry) -> _Draft:
        """An empty one."""
        is_sliding = any(group.window_tokens for group in geometry.groups)
        return cls(geometry, is_sliding, [[] for _ in geometry.groups])

    def hand_out(self, pages: Sequence[Sequence[int]], first_new: int) -> None:
        """Notes pages that changed hands: those behind the device match.

        Args:
            pages: for each group, by ordinal.
            first_new: the first block that was not matched; a partly matched one is new.
        """
        for known, group in zip(self.new_pages, pages, strict=True):
            known += [page for page in group[first_new:] if page >= 0]


def build_metadata(
    table: RequestTable, output: Any, iteration: int, now_s: float
) -> ConnectorMetadata:
    """Takes in one ``SchedulerOutput`` (host contract §3, §5 step 6).

    Args:
        table: all requests; updated.
        output: the host's report; may be empty, or None.
        iteration: 1 and up.
        now_s: monotonic clock, seconds.

    Returns:
        What the workers are to do.
    """
    draft = _Draft.of(table.geometry)
    if output is not None:
        for report in output.new_requests:
            _take_new(table, report, iteration, now_s, draft)
        _take_cached(table, output.cached_requests, iteration, now_s, draft)
    for state in table.unreported():
        _take_waiting(table, state, iteration, draft)
    table.expire(iteration, now_s)
    new_pages = [np.array(pages, dtype=np.int32) for pages in draft.new_pages]
    return ConnectorMetadata(
        iteration=iteration,
        new_pages=tuple(new_pages) if any(pages.size for pages in new_pages) else (),
        alive=np.array(draft.alive, dtype=np.int64),
        valid_chunks=np.array(draft.valid, dtype=np.int32),
        next_tokens=np.array(draft.next_tokens, dtype=np.int64),
        reached=np.array(draft.reached, dtype=np.int64),
        names=tuple(draft.names),
        loads=tuple(draft.loads),
        ended=np.array(table.take_ended(), dtype=np.int64),
        may_fire=draft.may_fire,
        failure="; ".join(draft.failures),
    )


def without_saves(metadata: ConnectorMetadata, keys: Sequence[int]) -> ConnectorMetadata:
    """The same for an engine that caches no more: the other ranks' saves end as well.

    What ended it may have cost them the word that a page changed hands.

    Args:
        metadata: of the iteration.
        keys: our numbers of all requests that live.
    """
    ended = np.array([*metadata.ended.tolist(), *keys], dtype=np.int64)
    return replace(metadata, names=(), ended=ended)


def _take_waiting(table: RequestTable, state: RequestState, iteration: int, draft: _Draft) -> None:
    """A request that has no report: not in the batch yet, or waiting for its load."""
    if not state.allocated:
        return
    if state.seen_iteration == iteration:  # its pages may be written from now on
        draft.hand_out(state.pages, state.matched_tokens // draft.geometry.tokens_per_block)
    offer = state.offer
    if offer is not None and offer.is_async and _order_load(table, state, draft):
        state.loading = (offer.start_tokens, offer.end_tokens)


def _take_new(
    table: RequestTable, report: Any, iteration: int, now_s: float, draft: _Draft
) -> None:
    geometry = draft.geometry
    computed, scheduled = int(report.computed_position), int(report.num_scheduled_tokens)
    matched = max(0, computed)
    draft.may_fire |= scheduled >= 2
    pages = reported_pages(report, geometry.num_groups)
    draft.hand_out(pages, matched // geometry.tokens_per_block)
    state = table.find(int(report.request_id))
    overdue = table.take_overdue(int(report.request_id))
    if overdue and state is None:
        draft.failures.append(
            f"request {report.request_id}: {overdue} tokens were promised, and given up when it "
            "was not heard of for a minute"
        )
    if state is None or state.finished:
        return  # never queried nor allocated through us: its scope is unknown, so it is not saved
    if state.reported:
        # The same id begins anew without a query (a replay): the new life is not ours to save.
        table.drop(state)
        return
    state.seen_iteration, state.seen_s = iteration, now_s
    table.begin(state, pages)
    loaded = _take_offer(table, state, computed, draft)
    if state.doubted:
        state.doubted_from = matched + loaded
        _settle_doubt(state, matched + loaded, scheduled, draft)
    if report.new_tokens != state.tokens and list(report.new_tokens) != state.tokens:
        stop = matched + loaded
        if (loaded or state.loading) and list(report.new_tokens[:stop]) != state.tokens[:stop]:
            draft.failures.append(f"request {report.request_id} was reported with other tokens")
        table.drop(state)
        return
    _advance(table, state, matched + loaded, scheduled, draft)


def _take_offer(
    table: RequestTable, state: RequestState, computed_position: int, draft: _Draft
) -> int:
    """Turns an offer into a load; returns the tokens it covers."""
    offer = state.offer
    if offer is None:
        return 0
    if computed_position < 0:
        # Block reuse is off behind our back: the whole prompt is computed (host contract §2).
        table.withdraw(state)
        return 0
    if computed_position != offer.start_tokens:
        draft.failures.append(
            f"request {state.facts.request_id}: {offer.num_tokens} tokens were promised behind "
            f"{offer.start_tokens}, the engine counts them behind {computed_position}"
        )
        table.withdraw(state)
        return 0
    # It is in the batch, so it cannot wait for its load, whatever it was told.
    state.offer = replace(offer, is_async=False)
    return offer.num_tokens if _order_load(table, state, draft) else 0


def _settle_doubt(state: RequestState, computed: int, scheduled: int, draft: _Draft) -> None:
    """Looks whether tokens that nobody loads are counted as computed, or are all computed."""
    end = computed + scheduled
    is_counted = computed > state.doubted_from or end + state.doubted == state.prompt_tokens
    if is_counted:
        draft.failures.append(
            f"request {state.facts.request_id}: {state.doubted} tokens are counted as loaded, and "
            "none were promised"
        )
    if is_counted or end >= state.prompt_tokens:
        state.doubted = 0
    state.doubted_from = end


def _order_load(table: RequestTable, state: RequestState, draft: _Draft) -> bool:
    """Hands an offer to the workers; says why where that is impossible."""
    offer = state.offer
    if offer is None:
        return False
    try:
        draft.loads.append(state.load_order(offer, draft.geometry))
    except ValueError as error:
        draft.failures.append(f"request {state.facts.request_id}: {error}")
        table.withdraw(state)
        return False
    state.offer = None
    return True


def _take_cached(
    table: RequestTable, reports: Sequence[Any], iteration: int, now_s: float, draft: _Draft
) -> None:
    # Runs for every generating request in every iteration.
    find, num_groups = table.find, draft.geometry.num_groups
    for report in reports:
        pages = None
        if report.new_block_ids or (num_groups > 1 and report.new_block_ids_by_layer_group):
            pages = reported_pages(report, num_groups)
            draft.hand_out(pages, 0)
        state = find(report.request_id)
        if state is None or state.finished or not state.reported:
            continue
        state.seen_iteration, state.seen_s = iteration, now_s
        if pages:
            for known, more in zip(state.pages, pages, strict=True):
                known += more
        state.tokens += report.new_tokens
        computed, scheduled = int(report.computed_position), int(report.num_scheduled_tokens)
        if state.doubted:
            _settle_doubt(state, computed, scheduled, draft)
        if scheduled >= 2 and computed < state.prompt_tokens - 1:
            draft.may_fire = True
        _advance(table, state, computed if computed > 0 else 0, scheduled, draft)


def _advance(
    table: RequestTable, state: RequestState, before: int, scheduled: int, draft: _Draft
) -> None:
    """Notes how far a request is computed, and names what this forward will complete.

    ``before`` tokens are valid before the forward (a lower bound for generating requests, whose
    position is behind under overlap, by no more than what is scheduled), and no more than all
    known ones after it. Source: host contract §3, "Positions".
    """
    # Calls of min() and max() were a third of what a generating request costs here.
    geometry, known = draft.geometry, len(state.tokens)
    draft.alive.append(state.key)
    draft.valid.append((before if before < known else known) // geometry.chunk_tokens)
    if draft.is_sliding:
        is_context = before < state.prompt_tokens - 1
        draft.next_tokens.append(before if is_context else before + scheduled)
        draft.reached.append(draft.next_tokens[-1] + scheduled)
        state.leave_windows(draft.next_tokens[-1], geometry, draft.new_pages)
    after = before + scheduled
    after = (after if after < known else known) // geometry.chunk_tokens
    if after > state.named_chunks:
        if table.is_drafting:
            after = min(after, state.prompt_tokens // geometry.chunk_tokens)
        names = name_chunks(state, after, geometry)
        if names is not None:
            draft.names.append(names)


def reported_pages(report: Any, num_groups: int) -> list[list[int]]:
    """The pages of a report by layer group.

    Args:
        report: the host's; with several groups its flat list is empty (host contract §7).
        num_groups: of the cache.

    Raises:
        ValueError: another number of groups.
    """
    if num_groups == 1:
        return [[int(page) for page in report.new_block_ids]]
    groups = report.new_block_ids_by_layer_group
    if not groups:
        return [[] for _ in range(num_groups)]
    if len(groups) != num_groups:
        raise ValueError(f"{len(groups)} layer groups were reported, there are {num_groups}")
    return [[int(page) for page in group] for group in groups]

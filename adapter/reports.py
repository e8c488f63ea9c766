"""From the host's per-iteration reports to what may be loaded and saved.

Purpose: keep tokens, pages and the computed frontier of each request from deltas, and name chunks
for saving ahead of the forward that completes them (design rule 1). Sans-IO. Must not know:
sockets, streams. Runs in: the executor's thread, inside ``build_connector_meta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapter.identity import Geometry
from adapter.metadata import ConnectorMetadata, LastWord, LoadOrder, SaveNames
from adapter.requests import RequestTable
from adapter.requeststate import RequestState


@dataclass
class _Draft:
    """Metadata in the making."""

    new_pages: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)
    names: list[SaveNames] = field(default_factory=list)
    loads: list[LoadOrder] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def build_metadata(
    table: RequestTable, output: Any, iteration: int, now_s: float
) -> ConnectorMetadata:
    """Takes in one ``SchedulerOutput`` (host contract §3, §5 step 6).

    Args:
        table: all requests; updated.
        output: the host's report; may be empty.
        iteration: 1 and up.
        now_s: monotonic clock, seconds.

    Returns:
        What the workers are to do.
    """
    draft = _Draft()
    for report in output.new_requests:
        _take_new(table, report, iteration, now_s, draft)
    _take_cached(table, output.cached_requests, iteration, now_s, draft)
    for state in table.unreported():
        if state.allocated and state.seen_iteration == iteration:
            # Not in the batch yet, but its pages may be written from now on.
            draft.new_pages += [page for page in state.pages if page >= 0]
    table.expire(iteration, now_s)
    return ConnectorMetadata(
        iteration=iteration,
        new_pages=np.array(draft.new_pages, dtype=np.int32),
        alive=np.array(draft.alive, dtype=np.int64),
        valid_chunks=np.array(draft.valid, dtype=np.int32),
        names=tuple(draft.names),
        loads=tuple(draft.loads),
        ended=np.array(table.take_ended(), dtype=np.int64),
        failure="; ".join(draft.failures),
    )


def _take_new(
    table: RequestTable, report: Any, iteration: int, now_s: float, draft: _Draft
) -> None:
    geometry = table.geometry
    matched = max(0, int(report.computed_position))
    pages = [int(page) for page in report.new_block_ids]
    draft.new_pages += _handed_out(pages, matched // geometry.tokens_per_block)
    state = table.find(int(report.request_id))
    if state is None or state.finished:
        return  # never queried nor allocated through us: its scope is unknown, so it is not saved
    if state.reported:
        # The same id begins anew without a query (a replay): the new life is not ours to save.
        table.drop(state)
        return
    state.seen_iteration, state.seen_s = iteration, now_s
    table.begin(state, pages)
    loaded = _take_offer(table, state, int(report.computed_position), draft)
    if report.new_tokens != state.tokens and list(report.new_tokens) != state.tokens:
        if not loaded:
            table.drop(state)
            return
        draft.failures.append(f"request {report.request_id} was reported with other tokens")
    _advance(state, matched + loaded, int(report.num_scheduled_tokens), geometry, draft)


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
    try:
        draft.loads.append(state.load_order(offer, table.geometry))
    except ValueError as error:
        draft.failures.append(f"request {state.facts.request_id}: {error}")
        table.withdraw(state)
        return 0
    state.offer = None
    return offer.num_tokens


def _take_cached(
    table: RequestTable, reports: Sequence[Any], iteration: int, now_s: float, draft: _Draft
) -> None:
    # Runs for every generating request in every iteration.
    geometry, find = table.geometry, table.find
    for report in reports:
        pages = report.new_block_ids
        if pages:
            pages = [int(page) for page in pages]
            draft.new_pages += _handed_out(pages, 0)
        state = find(report.request_id)
        if state is None or state.finished or not state.reported:
            continue
        state.seen_iteration, state.seen_s = iteration, now_s
        if pages:
            state.pages += pages
        state.tokens += report.new_tokens
        computed = int(report.computed_position)
        _advance(state, max(0, computed), int(report.num_scheduled_tokens), geometry, draft)


def _advance(
    state: RequestState, before: int, scheduled: int, geometry: Geometry, draft: _Draft
) -> None:
    """Notes how far a request is computed, and names what this forward will complete.

    ``before`` tokens are valid before the forward (a lower bound for generating requests, whose
    position is one behind under overlap), and no more than all known ones after it. Source: host
    contract §3, "Positions".
    """
    known = len(state.tokens)
    draft.alive.append(state.key)
    draft.valid.append(min(before, known) // geometry.chunk_tokens)
    after = min(before + scheduled, known) // geometry.chunk_tokens
    if after > state.named_chunks:
        names = _name(state, after, geometry)
        if names is not None:
            draft.names.append(names)


def last_word(state: RequestState, tokens: Sequence[int], geometry: Geometry) -> LastWord:
    """What is computed of a request that finished, and what no report has named.

    The token sampled last was never fed. Under overlap the reports lag behind, so a block that the
    last forward completed may be named here first. Source: host contract §3, "Positions".

    Args:
        state: of the request; takes in the tokens that were not reported.
        tokens: all of its tokens now.
        geometry: block and chunk sizes.
    """
    state.tokens += tokens[len(state.tokens) :]
    valid = max(0, len(tokens) - 1) // geometry.chunk_tokens
    return LastWord(valid, _name(state, valid, geometry))


def _name(state: RequestState, after: int, geometry: Geometry) -> SaveNames | None:
    """Names the chunks before ``after`` that were not named yet."""
    chunk = geometry.chunk_blocks
    if state.chain is None or after <= state.named_chunks:
        return None
    hashed = state.extend_chain() // chunk
    start, stop = state.named_chunks, min(after, hashed, len(state.pages) // chunk)
    pages = np.array(state.pages[start * chunk : stop * chunk], dtype=np.int32)
    missing = np.flatnonzero(pages < 0)
    if missing.size:  # no page there (host contract rule 11): nothing behind it can be saved
        stop = start + int(missing[0]) // chunk
        pages = pages[: (stop - start) * chunk]
    if stop <= start:
        return None
    state.named_chunks = stop
    return SaveNames(
        request_id=state.facts.request_id,
        key=state.key,
        first_chunk=start,
        parent=state.parent_key(start, chunk),
        keys=state.chunk_keys(start, stop, chunk),
        pages=pages,
    )


def _handed_out(pages: Sequence[int], first_new: int) -> list[int]:
    """Pages that changed hands: all behind the device match, a partly matched one included."""
    return [page for page in pages[first_new:] if page >= 0]

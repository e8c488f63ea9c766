"""Rules about the second cache manager and about loads outside the batch.

Layer groups with pages of their own, windows that let go of pages, offers taken up in part,
requests destroyed and replayed, asynchronous loads. A connector that does not take layer groups, or
never loads asynchronously, is not blamed: nothing of it is seen. Runs in the kit's main thread;
probes run on the executor's.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any, Final

import torch

from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import RequestHandle
from adapter.conformance.host.weights import SLIDING
from adapter.conformance.kit.bench import BLOCK, SETTLE_S, WAIT_S, Bench, Probe, Seen, same, text
from adapter.conformance.kit.verdict import (
    NO_ASYNC,
    NO_GROUPS,
    NO_LAYOUTS,
    NO_LOAD,
    NO_SERVER,
    Verdict,
    broken,
    held,
    unseen,
)

_WINDOW: Final = 5 * BLOCK
_SLIDING: Final = replace(
    SLIDING, layer_windows=(0, _WINDOW, 0, _WINDOW), max_position_embeddings=16 * BLOCK
)
_GROUPS: Final = replace(
    SLIDING, layer_windows=(0, 4096, 0, 4096), max_position_embeddings=16 * BLOCK
)
"""Two layer groups of which none ever lets go of a page."""
_ALLOC: Final = "update_state_after_alloc_by_layer_group"
_PACE_S: Final = 0.03
_REJOIN_TRIES: Final = 30
_REJOIN_POLL_S: Final = 0.3

Rows = dict[int, set[int]]
"""Layer group to pages."""


class _Paced(Probe):
    """Forwards of a block each that take their time: a saver keeps up with a window."""

    def __call__(self, point: str, request_ids: tuple[int, ...]) -> None:
        """As the host calls it."""
        super().__call__(point, request_ids)
        if point == "launched":
            time.sleep(_PACE_S)


def _options(**changes: Any) -> HostOptions:
    settings: dict[str, Any] = {"epoch": "E3", "layout": "v2"}
    return HostOptions(**(settings | changes))


def _cache() -> KvCacheConfig:
    return KvCacheConfig(
        tokens_per_block=BLOCK, enable_partial_reuse=False, use_kv_cache_manager_v2=True
    )


def _slots(seen: Seen) -> list[tuple[int, torch.Tensor]]:
    """Group and bytes of each region: ``uint8[num_slots, stride]``, gaps included."""
    return [
        (
            group.layer_group_id,
            region.rows.as_strided((region.num_slots, region.stride), (region.stride, 1)),
        )
        for group in seen.host.pool.groups
        for region in group.regions
    ]


def _due(seen: Seen, mark: int, num_loaded: int) -> Rows:
    """The pages of a load, as the host reported them."""
    at = next(computed for _, computed, count in seen.offers(mark) if count)
    tables = seen.log.since(mark, _ALLOC)[-1].detail[0]
    blocks = slice(at // BLOCK, -(-(at + num_loaded) // BLOCK))
    return {
        group: {page for page in table[blocks] if page >= 0} for group, table in enumerate(tables)
    }


def skips_missing_pages_and_keeps_groups_apart(bench: Bench) -> Verdict:
    """Rule 11: -1 is no page, though a valid subscript; a page id means nothing in other groups."""
    if not bench.takes_layer_groups():
        return unseen(NO_GROUPS)
    probe, prompt, tries = _Paced(), text(11 * BLOCK + 1, seed=300), 3
    wanted = bench.expected(prompt, 2, _SLIDING)
    before: list[torch.Tensor] = []
    after: list[torch.Tensor] = []
    options = _options(regions="apart", probe=probe)
    engine = bench.engine(options, config=_SLIDING, cache=_cache(), max_num_tokens=BLOCK)
    with engine as seen:
        # What a busy machine's saver left behind the window, the next time brings.
        while tries and seen.store(prompt, 8).num_loaded_tokens < 11 * BLOCK:
            tries -= 1
        # Pages are handed out from the last one down: that one is another's now.
        seen.ask(text(BLOCK + 1, seed=301))
        mark = seen.log.mark()

        def shot(into: list[torch.Tensor]) -> None:
            seen.settle_streams()
            into += [rows.clone() for _, rows in _slots(seen)]

        probe.once("bound", lambda: shot(before))
        probe.once("forward", lambda: shot(after))
        result = seen.ask(prompt, 2)
        if not result.num_loaded_tokens:
            return unseen(NO_LOAD)
        due = _due(seen, mark, result.num_loaded_tokens)
        missing = sum(t.count(-1) for t in seen.log.since(mark, _ALLOC)[-1].detail[0])
        changed: Rows = {group: set() for group in due}
        for (group, _), one, other in zip(_slots(seen), before, after, strict=True):
            changed[group] |= set((one != other).any(dim=1).nonzero().flatten().tolist())
    strays = {group: sorted(changed[group] - due[group]) for group in due}
    if any(strays.values()):
        return broken(f"pages written that were not due, by group: {strays}")
    if not same(result, wanted):
        return broken("logits differ with two layer groups")
    if not missing:
        return unseen(
            "the whole prompt was offered without a missing page: nothing left its window"
        )
    counts = {group: len(pages) for group, pages in changed.items()}
    return held(f"{missing} pages missing, none written for them; written by group: {counts}")


def stores_what_its_window_still_holds(bench: Bench) -> Verdict:
    """Rule 16: behind its window a request has no pages, so nothing of them may be stored."""
    service = bench.service
    if not bench.takes_layer_groups():
        return unseen(NO_GROUPS)
    if service is None:
        return unseen(NO_SERVER)
    prompt = text(11 * BLOCK + 1, seed=310)
    beginning = prompt[: 2 * BLOCK + 1]
    wanted = [bench.expected(one, 2, _SLIDING) for one in (prompt, beginning)]
    # In one piece, so that the host takes an offer whole or not at all (host contract §5).
    engine = bench.engine(
        _options(), config=_SLIDING, num_blocks=64, cache=_cache(), enable_chunked_prefill=False
    )
    with engine as seen:
        seen.ask(prompt)
        service.restart()  # it holds nothing now; the host's own cache, what a window reaches
        if not _is_back(bench, seen):
            return unseen(f"the connector did not come back to its server. {NO_LOAD}")
        again = seen.store(prompt)
        results = [seen.store(prompt, 2), seen.store(beginning, 2)]
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return broken(f"logits differ: blocks outside a window of {_WINDOW} tokens were stored")
    matched, loaded = again.num_device_tokens, results[0].num_loaded_tokens
    if matched <= _WINDOW + BLOCK:
        return unseen(f"{matched} tokens matched on the device: try again on a quieter machine")
    return held(
        f"{matched} tokens on the device, a window of {_WINDOW}: {loaded} loaded later, "
        f"{results[1].num_loaded_tokens} of a beginning"
    )


def _is_back(bench: Bench, seen: Seen) -> bool:
    """Whether an engine finds what another stored, so that its own cache may stay as it is."""
    prompts = [text(BLOCK + 1, seed=320 + number) for number in range(_REJOIN_TRIES)]
    with bench.engine(_options(), config=_SLIDING, num_blocks=64, cache=_cache()) as other:
        for prompt in prompts:
            other.ask(prompt)
        other.host.forget_reuse(SETTLE_S)
    for prompt in prompts:
        if seen.ask(prompt).num_loaded_tokens:
            return True
        time.sleep(_REJOIN_POLL_S)
    return False


def loads_what_is_taken_up_of_an_offer(bench: Bench) -> Verdict:
    """§5, V2 rule: where pages for all of an offer are wanting, the host honours a part."""
    if not bench.takes_layer_groups():
        return unseen(NO_GROUPS)
    probe, prompt, other = Probe(), text(7 * BLOCK + 1, seed=340), text(4 * BLOCK + 1, seed=341)
    wanted = [bench.expected(other, 30, _GROUPS), bench.expected(prompt, 2, _GROUPS)]
    handles: list[RequestHandle] = []
    # The other request leaves 4 of 9 pages: 2 for a first chunk, and not 6 for what comes behind.
    engine = bench.engine(
        _options(probe=probe),
        config=_GROUPS,
        num_blocks=9,
        cache=_cache(),
        max_num_tokens=2 * BLOCK + 8,
    )
    with engine as seen:
        seen.store(prompt)
        mark = seen.log.mark()
        probe.once("launched", lambda: handles.append(seen.host.submit(prompt, 2)))
        results = [seen.ask(other, 30), handles[0].result(WAIT_S)]
        offered = next((count for _, _, count in seen.offers(mark) if count), 0)
    if not all(same(one, two) for one, two in zip(results, wanted, strict=True)):
        return broken("logits differ after an offer was honoured in part")
    honoured = results[1].num_loaded_tokens
    if not 0 < honoured < offered:
        return unseen(f"{honoured} of {offered} tokens were honoured. {NO_LOAD}")
    return held(f"{honoured} of {offered} tokens honoured and loaded, equal bits")


def begins_anew_when_replayed(bench: Bench) -> Verdict:
    """§6, Preempted: a destroyed request comes again under its id, its prompt longer."""
    return _replayed(bench, _options(), 350)


def takes_resets(bench: Bench) -> Verdict:
    """§6, Preempted, E4: ``request_reset`` says so, where a connector has it."""
    return _replayed(bench, _options(epoch="E4"), 353)


def takes_direct_preemption(bench: Bench) -> Verdict:
    """§6, Preempted, E4: ``request_finished`` says so; True puts the replay off."""
    return _replayed(bench, _options(epoch="E4", direct_preemption=True), 356)


def _replayed(bench: Bench, options: HostOptions, seed: int) -> Verdict:
    if not bench.takes_layouts():
        return unseen(NO_LAYOUTS)
    prompts = [text(3 * BLOCK + 1, seed=seed + number) for number in range(2)]
    count = 2 * BLOCK + 8
    config = _GROUPS if bench.takes_layer_groups() else None
    wanted = [bench.expected(prompt, count, config) for prompt in prompts]
    # Each grows to 6 pages: the one begun last loses its own.
    with bench.engine(options, config=config, num_blocks=8, cache=_cache()) as seen:
        for prompt in prompts:
            seen.store(prompt)
        mark = seen.log.mark()
        handles = [seen.host.submit(prompt, count) for prompt in prompts]
        results = [handle.result(WAIT_S) for handle in handles]
        offers = seen.offers(mark)
        seen.host.forget_reuse(SETTLE_S)
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return broken("logits of a replayed request differ")
    ids = [request for request, _, _ in offers]
    later = [count for place, (one, _, count) in enumerate(offers) if one in ids[:place]]
    if not any(later):
        return unseen(f"{len(later)} replays, nothing offered to them. {NO_LOAD}")
    return held(f"{len(later)} queries after a replay, {max(later)} tokens offered, equal bits")


def reports_each_load_once(bench: Bench) -> Verdict:
    """§3, §6: an asynchronous load is reported when its pages are filled, once per id."""
    prompts = [text(3 * BLOCK + 1, seed=360 + number) for number in range(3)]
    wanted = [bench.expected(prompt, 3) for prompt in prompts]
    with bench.engine(HostOptions(epoch="E4")) as seen:
        for prompt in prompts:
            seen.store(prompt)
        mark = seen.log.mark()
        handles = [seen.host.submit(prompt, 3) for prompt in prompts]
        results = [handle.result(WAIT_S) for handle in handles]
        seen.ask(text(BLOCK, seed=370))  # a few iterations more, for what comes late
        calls = seen.log.since(mark, "get_finished")
    announced = Counter(i for call in calls for i in call.detail[1])
    reported = Counter(i for call in calls if call.answer for i in call.answer[1])
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return broken("logits differ after an asynchronous load")
    if reported - announced:
        return broken(f"ids reported more often than announced: {dict(reported - announced)}")
    if announced - reported:
        return broken(f"ids never reported: {sorted(announced - reported)}")
    if not announced:
        return unseen(NO_ASYNC)
    return held(f"{len(announced)} asynchronous loads, each reported once, equal bits")

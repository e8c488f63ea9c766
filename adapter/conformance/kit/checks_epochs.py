"""Rules about what differs by epoch: reports, signals, bring-up, and what may be missing.

Runs in the kit's main thread; probes run on the executor's.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import RequestHandle
from adapter.conformance.kit.bench import BLOCK, SETTLE_S, WAIT_S, Bench, Probe, same, text
from adapter.conformance.kit.verdict import (
    NO_ASYNC,
    NO_LAYOUTS,
    NO_LOAD,
    Verdict,
    broken,
    held,
    unseen,
)
from adapter.trtllm_fallback import FallbackSchedulerOutput

_EPOCHS: Final = (
    ("E1", HostOptions(epoch="E1")),
    ("early E2", HostOptions(epoch="E2", salt_as_id=True)),
    ("E2", HostOptions(epoch="E2")),
    ("E3", HostOptions(epoch="E3")),
    ("E4", HostOptions(epoch="E4")),
)
_PREFIX_SCHEDULER: Final = ("reserve_prefix", "release_prefix_reservation")
_PREFIX_WORKER: Final = ("get_finished_prefix_loads",)
_CANCELLED: Final = 3


def serves_every_epoch(bench: Bench) -> Verdict:
    """§1: five-field reports, an integer salt, a text salt, layer groups; all must be read."""
    prompt = text(3 * BLOCK + 1, seed=2000)
    wanted = bench.expected(prompt, 3)
    loaded: dict[str, int] = {}
    for name, options in _EPOCHS:
        with bench.engine(options) as seen:
            seen.store(prompt, 3, cache_salt=name)
            result = seen.ask(prompt, 3, cache_salt=name)
        if not same(result, wanted):
            return broken(f"logits differ in {name}")
        loaded[name] = result.num_loaded_tokens
    if not all(loaded.values()):
        idle = ", ".join(name for name, count in loaded.items() if not count)
        return unseen(f"nothing was loaded in {idle}. {NO_LOAD}")
    return held(f"stored and loaded in {', '.join(loaded)}")


def answers_in_the_interfaces_types(bench: Bench) -> Verdict:
    """§3: ``(int, bool)`` but not ``(0, True)``, a bool, two lists: hosts die of the rest."""
    prompt = text(2 * BLOCK + 1, seed=2010)
    with bench.engine(HostOptions(epoch="E4")) as seen:
        seen.store(prompt, 2)
        seen.store(prompt, 2)
        seen.ask(text(BLOCK - 1, seed=2011))
        calls = seen.log.of("get_num_new_matched_tokens", "request_finished", "get_finished")
    if not calls:
        return unseen("no hook with an answer was called")
    return held(f"{len(calls)} answers, each of its type")


def takes_pages_it_was_not_asked_about(bench: Bench) -> Verdict:
    """§3: with reuse off E1 and E2 never query; pages, metadata and ends come all the same."""
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_block_reuse=False)
    prompt = text(3 * BLOCK + 1, seed=2020)
    wanted = bench.expected(prompt, 3)
    with bench.engine(HostOptions(epoch="E2"), cache=cache) as seen:
        results = [seen.ask(prompt, 3) for _ in range(2)]
        told = seen.log.of("update_state_after_alloc")
        raised = [call for call in seen.log.of() if call.error is not None]
    if raised:
        return broken(f"{raised[0].hook} raised {raised[0].error!r}")
    if not all(same(result, wanted) for result in results):
        return broken("logits differ with block reuse off")
    return held(f"{len(told)} requests that nothing was asked about, no hook raised")


def takes_batches_without_requests(bench: Bench) -> Verdict:
    """§3, §5: metadata of an empty batch is built, bound, and loads are started on it."""
    probe, prompt = Probe(), text(3 * BLOCK + 1, seed=2030)
    wanted = bench.expected(prompt, 4)
    with bench.engine(HostOptions(epoch="E3", probe=probe)) as seen:
        seen.store(prompt, 4)
        port, main = seen.host.connector, seen.host.device.main

        def empty() -> None:
            port.build_and_bind(FallbackSchedulerOutput())
            port.start_load(main, has_load=False)

        probe.once("launched", empty)
        result = seen.ask(prompt, 4)
    if not same(result, wanted):
        return broken("logits differ after a batch without requests")
    return held("built, bound and started between two batches of a request, equal bits")


def comes_up_behind_an_estimation(bench: Bench) -> Verdict:
    """§4: a temporary pool runs forwards, and the callable, before the connector has any pool."""
    prompt = text(2 * BLOCK + 1, seed=2040)
    wanted = bench.expected(prompt, 2)
    with bench.engine(HostOptions(estimate_kv=True)) as seen:
        seen.store(prompt, 2)
        result = seen.ask(prompt, 2)
    if not same(result, wanted):
        return broken("logits differ behind an estimation of memory")
    return held(f"came up, {result.num_loaded_tokens} tokens loaded")


def takes_late_empty_page_lists(bench: Bench) -> Verdict:
    """Rule 12, §6: an early stop under overlap is told again with no pages left (V2)."""
    if not bench.takes_layouts():
        return unseen(NO_LAYOUTS)
    # Long enough to be saved, and too short for that: pages go at once where nothing is to be kept.
    prompts = [text(length, seed=2050 + length) for length in (2 * BLOCK + 1, BLOCK // 2)]
    stops = [bench.expected(prompt, 3).tokens[1] for prompt in prompts]
    cache = KvCacheConfig(
        tokens_per_block=BLOCK, enable_partial_reuse=False, use_kv_cache_manager_v2=True
    )
    with bench.engine(HostOptions(epoch="E3", layout="v2"), cache=cache) as seen:
        for prompt, stop in zip(prompts * 2, stops * 2, strict=True):
            seen.ask(prompt, 8, stop_ids=[stop])
        seen.host.forget_reuse(SETTLE_S)
        ends = seen.log.of("request_finished", "request_finished_by_layer_group")
        lost = seen.host.num_pages - seen.host.stats().num_available_blocks
    again = [call for call in ends if not any(call.detail[-1] if call.detail else ())]
    if any(call.answer is True for call in again):
        return broken("request_finished answered True although there are no pages left")
    if lost:
        return broken(f"{lost} pages are lost")
    if not again:
        return unseen(
            "each request kept its pages, so none was told to have ended without: answer False to "
            "request_finished where nothing is left to save"
        )
    repeated = len(ends) - len({call.request_id for call in ends})
    return held(f"{repeated} ends told twice, {len(again)} of them without pages, nothing lost")


def stores_context_only_requests(bench: Bench) -> Verdict:
    """§6, disaggregated: one forward, then ``request_finished``."""
    prompt = text(3 * BLOCK + 1, seed=2060)
    wanted = bench.expected(prompt, 2)
    with bench.engine() as seen:
        seen.store(prompt, context_only=True)
        result = seen.ask(prompt, 2)
    if not same(result, wanted):
        return broken("logits differ after a request that computed its context alone")
    if not result.num_loaded_tokens:
        return unseen(f"nothing of such a request is stored, which is no breach. {NO_LOAD}")
    return held(f"{result.num_loaded_tokens} tokens of it loaded, equal bits")


def ends_cancelled_loads(bench: Bench) -> Verdict:
    """§6, E4: a cancelled request's load is awaited; it is reported all the same, once."""
    probe, handles = Probe(), list[RequestHandle]()
    prompts = [text(3 * BLOCK + 1, seed=2070 + number) for number in range(_CANCELLED)]
    wanted = bench.expected(prompts[0], 2)
    # Completions count late, so that each load is still pending when its request is cancelled.
    with bench.engine(HostOptions(epoch="E4", probe=probe, load_skew=4)) as seen:
        for prompt in prompts:
            seen.store(prompt)
        mark = seen.log.mark()
        for prompt in prompts:
            probe.once("bound", lambda: seen.host.cancel(handles[-1]))
            handles.append(seen.host.submit(prompt, 2))
            _await_end(handles[-1])
        seen.host.forget_reuse(SETTLE_S)
        calls = seen.log.since(mark, "get_finished")
        result = seen.ask(prompts[0], 2)
        seen.host.forget_reuse(SETTLE_S)
        lost = seen.host.num_pages - seen.host.stats().num_available_blocks
    begun = sorted(one for call in calls for one in call.detail[1])
    ended = sorted(one for call in calls if call.answer for one in call.answer[1])
    if begun != ended:
        return broken(f"loads of {begun} were begun and those of {ended} reported")
    if not same(result, wanted):
        return broken("logits differ after cancelled loads")
    if lost:
        return broken(f"{lost} pages are lost")
    if not begun:
        return unseen(NO_ASYNC)
    return held(f"{len(begun)} loads of cancelled requests, each reported once, no page lost")


def _await_end(handle: RequestHandle) -> None:
    try:
        handle.result(WAIT_S)
    except RequestCancelledError:
        pass


def has_all_of_prefix_reservations_or_none(bench: Bench) -> Verdict:
    """§3, E4: ``reserve_prefix`` comes with its two companions, else a host refuses to start."""
    found = bench.methods(_PREFIX_SCHEDULER, _PREFIX_WORKER)
    wanted = {*_PREFIX_SCHEDULER, *_PREFIX_WORKER}
    if found and found != wanted:
        return broken(f"has {', '.join(sorted(found))}, lacks {', '.join(sorted(wanted - found))}")
    return held("has all three" if found else "has none of the three")


def leaves_no_threads(bench: Bench) -> Verdict:
    """Rule 14, §3: hosts end without a word: threads are daemons; ``shutdown`` may come twice."""
    before = set(threading.enumerate())
    prompt = text(BLOCK + 1, seed=2080)
    with bench.engine(HostOptions(epoch="E4")) as seen:
        seen.ask(prompt, 2)
        own: list[Any] = [
            one
            for one in set(threading.enumerate()) - before
            if one.name != "executor" and not one.name.startswith("stream")
        ]
    kept = sorted(one.name for one in own if not one.daemon)
    if kept:
        return broken(f"threads that keep the process from ending: {', '.join(kept)}")
    return held(f"{len(own)} threads beside the host's, all of them daemons; shut down twice")

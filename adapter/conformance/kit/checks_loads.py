"""Rules about loads: what may be written, when, and what follows when something fails.

Runs in the kit's main thread; probes run on the executor's.
"""

from __future__ import annotations

import threading
import time

import torch

from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit.bench import BLOCK, Bench, Probe, Seen, same, text
from adapter.conformance.kit.verdict import NO_LOAD, NO_SERVER, Verdict, broken, held, unseen

_SLOW_S = 0.2


def _loaded_pages(seen: Seen, mark: int) -> list[int]:
    offers = {request: (at, count) for request, at, count in seen.offers(mark) if count}
    pages: list[int] = []
    for call in seen.log.since(mark, "update_state_after_alloc"):
        at, count = offers.get(call.request_id, (0, 0))
        pages += call.detail[0][at // BLOCK : (at + count) // BLOCK]
    return pages


def writes_only_what_was_offered(bench: Bench) -> Verdict:
    """Rule 4: pages before the load range are shared with running requests."""
    probe, prompt = Probe(), text(5 * BLOCK + 1, seed=20)
    before: list[torch.Tensor] = []
    after: list[torch.Tensor] = []
    with bench.engine(HostOptions(probe=probe)) as seen:
        seen.store(prompt)
        seen.ask(prompt[: 2 * BLOCK + 1])  # two blocks are on the device now
        mark = seen.log.mark()

        def shot(into: list[torch.Tensor]) -> None:
            seen.settle_streams()
            into.append(seen.host.pool.view(torch.uint8).clone())

        probe.once("bound", lambda: shot(before))
        probe.once("forward", lambda: shot(after))
        seen.ask(prompt)
        pages = _loaded_pages(seen, mark)
    if not pages:
        return unseen(NO_LOAD)
    changed = (before[0] != after[0]).flatten(1).any(dim=1).nonzero().flatten().tolist()
    if not set(changed) <= set(pages):
        return broken(f"pages {sorted(set(changed) - set(pages))} were written, {pages} were due")
    if set(changed) != set(pages):
        return broken(f"pages {sorted(set(pages) - set(changed))} were due and not written")
    return held(f"{len(pages)} pages behind a match of {2 * BLOCK} tokens, no other")


def waits_for_forwards_queued_before(bench: Bench) -> Verdict:
    """Rule 5: a recycled page may still be read by a forward that was queued earlier."""
    probe, prompt = Probe(), text(3 * BLOCK + 1, seed=21)
    early: list[bool] = []
    done = threading.Event()
    with bench.engine(HostOptions(probe=probe)) as seen:
        seen.store(prompt)
        mark = seen.log.mark()

        def slow_reader() -> None:
            pages = _loaded_pages(seen, mark)
            seen.settle_streams()
            first = seen.host.pool[pages].view(torch.uint8).clone()

            def read() -> None:
                time.sleep(_SLOW_S)
                early.append(not torch.equal(first, seen.host.pool[pages].view(torch.uint8)))
                done.set()

            if pages:
                seen.queue_forward_work(read)

        probe.once("bound", slow_reader)
        result = seen.ask(prompt)
        if not done.wait(_SLOW_S * 10) or not result.num_loaded_tokens:
            return unseen(NO_LOAD)
    if early[0]:
        return broken("pages were written while a forward queued before still used them")
    return held(f"{result.num_loaded_tokens} tokens were loaded behind a forward of {_SLOW_S} s")


def loads_what_it_offered_without_its_server(bench: Bench) -> Verdict:
    """Rule 3: an offer is pinned and loadable; there is no "load failed" reply."""
    service = bench.service
    if service is None:
        return unseen(NO_SERVER)
    probe, prompt = Probe(), text(4 * BLOCK + 1, seed=22)
    wanted = bench.expected(prompt, 3)
    with bench.engine(HostOptions(probe=probe)) as seen:
        seen.store(prompt)
        probe.once("queried", service.kill)
        try:
            result = seen.ask(prompt, 3)
        finally:
            service.restart()
        if "queried" not in probe.seen:
            return unseen(NO_LOAD)
    if not same(result, wanted):
        return broken("the server died between offer and load, and the logits differ")
    return held(f"{result.num_loaded_tokens} tokens loaded after kill -9 of the server")


def repeats_nothing_and_takes_stale_metadata(bench: Bench) -> Verdict:
    """Rule 8: a forward may be skipped, loads are idempotent, metadata may be stale or None."""
    probe, prompt = Probe(), text(3 * BLOCK + 1, seed=23)
    skips = iter((True, True))
    armed = threading.Event()
    options = HostOptions(
        epoch="E3", probe=probe, skip_forward=lambda _: armed.is_set() and next(skips, False)
    )
    wanted = bench.expected(prompt, 3)
    with bench.engine(options) as seen:
        worker, main = seen.host.connector.worker, seen.host.device.main
        try:
            worker.bind_connector_meta(None)
            worker.start_load_kv(main)
        except Exception as error:  # noqa: BLE001 - whatever it raises breaks the rule
            return broken(f"metadata None: {error!r}")
        seen.store(prompt)
        armed.set()
        result = seen.ask(prompt, 3)
    if not same(result, wanted):
        return broken("logits differ after a load whose forward was skipped")
    if not result.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(f"{result.num_loaded_tokens} tokens loaded, two forwards skipped")


def needs_no_layer_hooks(bench: Bench) -> Verdict:
    """Rule 14: a replayed graph calls no layer hook, also for a prompt that is a full hit."""
    prompt = text(3 * BLOCK + 1, seed=24)
    wanted = bench.expected(prompt, 3)
    with bench.engine(HostOptions(cuda_graphs=True)) as seen:
        seen.store(prompt)
        mark = seen.log.mark()
        result = seen.ask(prompt, 3)
        hooks = seen.log.since(mark, "wait_for_layer_load")
    if not same(result, wanted):
        return broken("logits differ when one token is left and no layer hook fires")
    if hooks or not result.num_loaded_tokens:
        return unseen(f"{len(hooks)} layer hooks fired. {NO_LOAD}")
    return held(f"{result.num_loaded_tokens} tokens loaded, no layer hook fired")


def loads_a_part_of_a_prompt(bench: Bench) -> Verdict:
    """§12 row 2: only a beginning is stored; exactly that is retrieved, and nothing is missing."""
    beginning = text(3 * BLOCK, seed=26)
    longer = [*beginning, *text(2 * BLOCK + 1, seed=27)]
    wanted = bench.expected(longer, 3)
    with bench.engine() as seen:
        seen.store([*beginning, 1])
        result = seen.store(longer, 3)
        again = seen.ask(longer, 3)
    if not (same(result, wanted) and same(again, wanted)):
        return broken("logits differ after a hit on the beginning of a prompt")
    if not result.num_loaded_tokens:
        return unseen(NO_LOAD)
    return held(
        f"{result.num_loaded_tokens} of {len(longer)} tokens loaded, then {again.num_loaded_tokens}"
    )


def shares_nothing_wrong(bench: Bench) -> Verdict:
    """Every answer from the cache equals one computed without it."""
    prompt = text(4 * BLOCK + 3, seed=25)
    wanted = bench.expected(prompt, 4)
    with bench.engine() as seen:
        seen.store(prompt, 4)
        results = [seen.store(prompt, 4) for _ in range(3)]
    if not all(same(result, wanted) for result in results):
        return broken("logits differ from a run without a cache")
    loaded = results[-1].num_loaded_tokens
    return held(f"{loaded} tokens loaded, equal bits") if loaded else unseen(NO_LOAD)

"""Rules about the hooks themselves: how long they take, and what leaves them.

Runs in the kit's main thread.
"""

from __future__ import annotations

import pickle
import threading
from typing import Final

from adapter.conformance.host.hooks import BRING_UP
from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit.bench import BLOCK, Bench, Probe, Seen, same, text
from adapter.conformance.kit.serverchild import Server
from adapter.conformance.kit.verdict import NO_ADP, NO_SERVER, Verdict, broken, held, unseen

LONGEST_S: Final = 0.05
_TRIES: Final = 3
"""A hook that waits does so each time; one that lost its CPU to others does not."""
_GATE_S: Final = 15.0
_PICKLED_BYTES: Final = 1 << 20


def _longest_without_load(seen: Seen) -> tuple[float, str]:
    rows = [
        (float(str(row["max_us"])) / 1e6, str(row["hook"]))
        for row in seen.host.hooks.as_rows()
        if not row["with_load"] and row["hook"] not in BRING_UP
    ]
    return max(rows)


def never_blocks_while_its_server_hangs(bench: Bench) -> Verdict:
    """Rule 10: one executor thread serves the whole engine."""
    if bench.service is None:
        return unseen(NO_SERVER)
    longest_s, hook = LONGEST_S, ""
    for first_seed in range(500, 500 + 10 * _TRIES, 10):
        found = _hang(bench, bench.service, first_seed)
        if found is None:
            return broken("logits differ while the server is stopped")
        longest_s, hook = found
        if longest_s <= LONGEST_S:
            told = f"longest hook {longest_s * 1e3:.1f} ms: {hook}"
            return held(f"stopped server, 6 requests served, {told}")
    return broken(
        f"{hook} took {longest_s * 1e3:.0f} ms with a stopped server, as in each of {_TRIES} tries"
    )


def _hang(bench: Bench, service: Server, first_seed: int) -> tuple[float, str] | None:
    """The longest hook while a server is stopped; None when an answer was wrong."""
    prompts = [text(3 * BLOCK + 1, seed=first_seed + number) for number in range(6)]
    with bench.engine() as seen:
        seen.store(prompts[0])
        service.pause()
        try:
            results = [seen.ask(prompt, 3) for prompt in prompts]
        finally:
            service.resume()
        longest = _longest_without_load(seen)
    wanted = [bench.expected(prompt, 3) for prompt in prompts]
    if not all(same(one, other) for one, other in zip(results, wanted, strict=True)):
        return None
    return longest


def does_not_wait_for_forwards(bench: Bench) -> Verdict:
    """§12 row 9: ``wait_for_save`` and ``get_finished`` return while the forward still runs."""
    probe, prompt = Probe(), text(3 * BLOCK + 1, seed=510)
    gate, waited = threading.Event(), list[bool]()
    with bench.engine(HostOptions(probe=probe)) as seen:
        seen.ask(text(BLOCK, seed=511))  # brought up, warmed up

        def hold() -> None:
            seen.queue_forward_work(lambda: waited.append(not gate.wait(_GATE_S)))
            probe.once("bound", gate.set)

        # A hook that waits for the device meets a gate that the next iteration opens.
        probe.once("forward", hold)
        result = seen.ask(prompt, 2)
    if not waited or any(waited):
        return broken(f"a hook waited for the forward, for {_GATE_S:.0f} s")
    if not same(result, bench.expected(prompt, 2)):
        return broken("logits differ behind a slow forward")
    return held("every hook of an iteration returned while its forward was held up")


def raises_nothing_when_its_server_dies(bench: Bench) -> Verdict:
    """§10: whatever leaves a hook ends the executor or fails every request."""
    service = bench.service
    if service is None:
        return unseen(NO_SERVER)
    prompt = text(3 * BLOCK + 1, seed=90)
    wanted = bench.expected(prompt, 3)
    with bench.engine() as seen:
        seen.store(prompt, 3)
        service.kill()
        try:
            results = [seen.ask(prompt, 3) for _ in range(3)]
        finally:
            service.restart()
        raised = [call for call in seen.log.of() if call.error is not None]
    if raised:
        return broken(f"{raised[0].hook} raised {raised[0].error!r}")
    if not all(same(result, wanted) for result in results):
        return broken("logits differ after the server died")
    return held("kill -9 of the server, 3 more requests served, no hook raised")


def comes_up_without_a_server(bench: Bench) -> Verdict:
    """§4, §12 row 10: bring-up neither hangs nor fails for want of a server."""
    service = bench.service
    if service is None:
        return unseen(NO_SERVER)
    prompt = text(2 * BLOCK + 1, seed=91)
    wanted = bench.expected(prompt, 2)
    service.kill()
    try:
        with bench.engine() as seen:
            result = seen.ask(prompt, 2)
            began_s = sum(call.elapsed_s for call in seen.log.of("wait_for_initialization"))
    finally:
        service.restart()
    if not same(result, wanted):
        return broken("logits differ without a server")
    return held(f"an engine came up without a server, waited {began_s:.1f} s for it, and served")


def hands_over_metadata_that_pickles(bench: Bench) -> Verdict:
    """§3: metadata is pickled between ranks, also that of an empty batch."""
    with bench.engine() as seen:
        seen.store(text(3 * BLOCK + 1, seed=92), 4)
        metadata = [call.answer for call in seen.log.of("build_connector_meta")]
    sizes = [len(pickle.dumps(one)) for one in metadata]
    if not sizes:
        return unseen("no metadata was built: no request was reported")
    if max(sizes) > _PICKLED_BYTES:
        return broken(f"{max(sizes)} bytes of metadata for a batch of one request")
    return held(f"{len(sizes)} pickled, at most {max(sizes)} bytes")


def says_that_it_supports_attention_dp(bench: Bench) -> Verdict:
    """§3, §11: an opt-in of both classes, or of neither; of one alone no engine takes it."""
    flags = bench.opted_into_attention_dp()
    if not (any(flags) or bench.is_ours):
        return unseen(NO_ADP)
    if not all(flags):
        return broken(f"supports_attention_dp of scheduler and worker: {flags}")
    return held("both classes opt in")

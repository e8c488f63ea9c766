"""Rows 6, 9, 10, 11 and 12: waits too short or too long, ids that collide, state that stays."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit import checks_hooks, checks_saves
from adapter.conformance.kit.bench import BLOCK, Bench, Probe, same, text
from adapter.conformance.kit.verdict import Outcome
from adapter.conformance.schedules.play import check_nothing_left
from adapter.conformance.schedules.service import Service
from adapter.conformance.schedules.subject import SoloSubject

pytestmark = pytest.mark.torch


def test_row_06_a_late_answer_is_used_and_locks_do_not_linger(
    bench: Bench, service: Service
) -> None:
    prompt = text(3 * BLOCK + 1, seed=60)
    pid = service.child.pid
    with bench.engine() as seen:
        seen.store(prompt)
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (pid, signal.SIGCONT)).start()
        result = seen.store(prompt, 2)  # the budget of these tests is 500 ms
        assert result.num_loaded_tokens == 3 * BLOCK
        with closing(SoloSubject(seen.host)) as subject:
            check_nothing_left(0, subject)


def test_row_09_no_hook_waits_for_a_server_or_a_forward(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS")
    verdict = checks_hooks.never_blocks_while_its_server_hangs(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence
    probe, prompt = Probe(), text(2 * BLOCK + 1, seed=61)
    with bench.engine(HostOptions(probe=probe)) as seen:
        probe.once("bound", lambda: seen.queue_forward_work(lambda: time.sleep(0.5)))
        seen.ask(prompt, 3)
        slowest = max(
            call.elapsed_s for call in seen.log.of("wait_for_save", "get_finished", "save_kv_layer")
        )
    assert slowest < 0.05, "a save waited for the forward"


def test_row_10_an_engine_comes_up_without_its_server(bench: Bench) -> None:
    verdict = checks_hooks.comes_up_without_a_server(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence


def test_row_10_an_engine_whose_registration_is_not_answered_runs_and_is_cached_later(
    bench: Bench, service: Service
) -> None:
    prompt, pid = text(3 * BLOCK + 1, seed=65), service.child.pid
    wanted = bench.expected(prompt, 3)
    os.kill(pid, signal.SIGSTOP)
    try:
        with bench.engine() as seen:
            assert same(seen.store(prompt, 3), wanted)  # no transfer raises
            os.kill(pid, signal.SIGCONT)
            end_s, loaded = time.monotonic() + 20.0, 0
            while not loaded:
                assert time.monotonic() < end_s, "it was never cached again"
                result = seen.store(prompt, 3)
                assert same(result, wanted)
                loaded = result.num_loaded_tokens
            assert seen.host.error is None
    finally:
        os.kill(pid, signal.SIGCONT)


def test_row_11_equal_request_ids_of_two_engines_do_not_collide(bench: Bench) -> None:
    one, other = text(3 * BLOCK + 1, seed=62), text(3 * BLOCK + 1, seed=63)
    with bench.engine() as first, bench.engine() as second:
        handles = [
            (prompt, host.host.submit(prompt, 4))
            for prompt, host in ((one, first), (other, second))
        ]
        assert len({handle.request_id for _, handle in handles}) == 1
        results = [(prompt, handle.result(60.0)) for prompt, handle in handles]
        first.host.forget_reuse(20.0)
        second.host.forget_reuse(20.0)
        crossed = [(other, first.ask(other, 4)), (one, second.ask(one, 4))]
    for prompt, result in (*results, *crossed):
        assert same(result, bench.expected(prompt, 4))
    assert [result.num_loaded_tokens for _, result in crossed] == [3 * BLOCK, 3 * BLOCK]


def test_row_12_cancelled_requests_leave_no_lock_behind(bench: Bench) -> None:
    verdict = checks_saves.forgets_what_is_cancelled(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence
    prompt = text(3 * BLOCK + 1, seed=64)
    with bench.engine(HostOptions(epoch="E3")) as seen:
        seen.store(prompt)
        for _ in range(8):
            seen.host.cancel(seen.host.submit(prompt, 30))
        seen.host.forget_reuse(20.0)
        with closing(SoloSubject(seen.host)) as subject:
            check_nothing_left(0, subject)

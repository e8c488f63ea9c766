"""Several ranks as threads: who is asked, who hears, and when a transfer counts (contract §5)."""

import itertools
import threading
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import ExecutorDiedError, HostError
from tests.adapter.conformance.host.lifecycles import (
    WAIT_S,
    details_of,
    engine,
    names_of,
    prompt,
    until,
)
from tests.adapter.conformance.host.threadcomm import ThreadComm, meet, on_all

pytestmark = pytest.mark.torch

NAMES = itertools.count()
SCHEDULER = {"scheduler", "query", "alloc", "build", "request_finished", "wait_for_initialization"}


class Job:
    """Engines of all ranks; shut down together, as a job is."""

    def __init__(
        self, size: int, urls: list[str], options: list[dict[str, Any]], **both: Any
    ) -> None:
        def bring_up(comm: ThreadComm) -> HostEngine:
            return engine(urls[comm.rank], comm=comm, **both, **options[comm.rank])

        # One after the other: which epoch is played is said to a whole process.
        self.hosts = [bring_up(comm) for comm in meet(size)]

    def __enter__(self) -> list[HostEngine]:
        return self.hosts

    def __exit__(self, *_: Any) -> None:
        stopping = [threading.Thread(target=host.shutdown) for host in self.hosts]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def tensor_parallel(
    rules: tuple[str, str] = ("", ""),
    options: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    **both: Any,
) -> Job:
    number = next(NAMES)
    urls = [f"rule://{rule}" if rule else f"plain://{number}.{i}" for i, rule in enumerate(rules)]
    return Job(2, urls, list(options), **both)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_leader_answers_for_all_and_every_rank_runs_every_step(overlap: bool) -> None:
    with tensor_parallel(overlap=overlap) as (leader, follower):
        results = [leader.submit(prompt(20, i), 3).result(WAIT_S) for i in range(2)]
        until(lambda: follower.stats().num_finished == 2)
        assert [len(result.tokens) for result in results] == [3, 3]
        with pytest.raises(HostError, match="ask the leader"):
            follower.submit(prompt(20), 1)
    assert not SCHEDULER & set(names_of(follower))
    assert set(names_of(leader)) >= SCHEDULER
    for name in ("bind", "start_load_kv", "wait_for_layer_load", "wait_for_save"):
        assert details_of(leader, name) == details_of(follower, name)
        assert details_of(leader, name)
    assert leader.stats().num_forwards == follower.stats().num_forwards


def test_a_load_counts_once_every_rank_has_it() -> None:
    url = f"dict://{next(NAMES)}?async"
    with engine(url, kind="Dict") as warm:
        right = warm.submit(prompt(20), 2).result(WAIT_S)
    with Job(2, [url] * 2, [{}, {"load_skew": 7}], kind="Dict") as (leader, follower):
        result = leader.submit(prompt(20), 2).result(WAIT_S)
        assert result.tokens == right.tokens
        assert result.num_loaded_tokens == 16
        until(lambda: follower.stats().num_finished == 1)
        # Both waited for the later one, and agree on everything.
        assert leader.stats().num_iterations >= 7
        assert not leader._executor.ledger
        assert not follower._executor.ledger


def test_pages_are_kept_until_every_rank_has_saved() -> None:
    with tensor_parallel(("keep", "keep-too")) as (leader, follower):
        leader.submit(prompt(20), 1).result(WAIT_S)
        leader.connector.worker.answers = [([1], [])]
        until(lambda: leader.submit(prompt(4, 9), 1).result(WAIT_S) is not None)
        until(lambda: not leader.connector.worker.answers)
        kept = leader.stats().num_saving_pages
        assert kept >= 3
        follower.connector.worker.answers = [([1], [])]
        leader.connector.scheduler.rule = "nothing"
        leader.submit(prompt(4, 8), 1).result(WAIT_S)
        until(lambda: not follower.connector.worker.answers)
        leader.submit(prompt(4, 7), 1).result(WAIT_S)
        until(lambda: leader.stats().num_saving_pages <= kept - 3)
        assert follower.stats().num_saving_pages == leader.stats().num_saving_pages


def test_a_rank_whose_load_raises_ends_the_job() -> None:
    with tensor_parallel(("", "load-raises")) as (leader, follower):
        with pytest.raises(ExecutorDiedError):
            leader.submit(prompt(20), 1).result(WAIT_S)
        until(lambda: follower.error is not None)
        assert isinstance(follower.error, OSError)
        assert leader.error is not None


def test_cancelling_and_forgetting_reach_every_rank() -> None:
    with tensor_parallel() as (leader, follower):
        leader.submit(prompt(20), 1).result(WAIT_S)
        assert leader.forget_reuse(WAIT_S) == 3
        until(lambda: follower.stats().num_available_blocks == 32)
        handle = leader.submit(prompt(20), 200)
        until(lambda: leader.stats().num_forwards > 3)
        leader.cancel(handle)
        until(handle.done)
        until(lambda: follower.stats().num_available_blocks == 32)
        follower.allocator.check_integrity()


def attention_dp(size: int, urls: list[str], options: list[dict[str, Any]], **both: Any) -> Job:
    args = {"enable_attention_dp": True}
    return Job(size, urls, options, args=args, epoch="E3", **both)


def test_under_attention_dp_every_rank_has_a_scheduler_and_idle_ranks_run_dummies() -> None:
    urls = [f"plain://dp{next(NAMES)}" for _ in range(2)]
    with attention_dp(2, urls, [{}, {}]) as (one, other):
        assert len(one.submit(prompt(20), 4).result(WAIT_S).tokens) == 4
        until(lambda: one.stats().num_forwards == other.stats().num_forwards)
        assert len(other.submit(prompt(9, 3), 2).result(WAIT_S).tokens) == 2
        assert {one.stats().num_available_blocks, other.stats().num_available_blocks} == {32}
    assert other.stats().num_forwards >= 6
    (asked,) = details_of(other, "query")
    assert asked[0].request_id == 1
    built = details_of(other, "build")
    assert any(not output.new_requests and not output.cached_requests for output in built)
    assert {output.attention_dp_rank for output in built} == {1}
    assert names_of(other).count("start_load_kv") == len(built)


def test_one_rank_without_a_batch_keeps_every_rank_from_forwarding() -> None:
    urls = [f"plain://dp{next(NAMES)}" for _ in range(2)]
    skipped = [{}, {"skip_forward": {1, 2}.__contains__}]
    with attention_dp(2, urls, skipped, overlap=False) as (one, _):
        result = one.submit(prompt(20), 2).result(WAIT_S)
    names = names_of(one)
    assert len(result.tokens) == 2
    assert names.count("start_load_kv") == names.count("wait_for_save") + 2
    new = [data for output in details_of(one, "build") for data in output.new_requests]
    again = [data for output in details_of(one, "build") for data in output.cached_requests]
    assert len(new) == names.count("query") == 1
    assert (again[0].new_tokens, again[0].new_block_ids) == ([], [])


def warmed(name: str) -> str:
    url = f"dict://{name}?async"
    with engine(url, kind="Dict") as warm:
        warm.submit(prompt(20), 2).result(WAIT_S)
    return url


def loads_started(host: HostEngine) -> list[list[int]]:
    """Of each ``start_load_kv``: the ids of the requests newly reported before it."""
    seen: list[list[int]] = []
    scheduler, worker = host.connector.scheduler, host.connector.worker
    build, start = scheduler.build_connector_meta, worker.start_load_kv
    new: list[list[int]] = [[]]

    def building(output: Any) -> object:
        new[0] = [data.request_id for data in output.new_requests]
        return build(output)

    def starting(stream: Any) -> None:
        seen.append(new[0])
        start(stream)

    scheduler.build_connector_meta, worker.start_load_kv = building, starting
    return seen


@pytest.mark.parametrize("fits", [True, False])
def test_a_parked_load_that_empties_a_batch_is_bridged_by_a_dummy_or_awaited(fits: bool) -> None:
    url = warmed(f"parked{next(NAMES)}")
    both = {"kind": "Dict", "num_blocks": 4 if fits else 3}
    with attention_dp(1, [url], [{}], **both) as (host,):
        started = loads_started(host)
        result = host.submit(prompt(20), 2).result(WAIT_S)
        assert result.num_loaded_tokens == 16
    # Awaited: started twice in the first iteration, the request new in the second of them.
    iterations = host.stats().num_iterations
    assert started[:1] == [[]]
    assert [1] in started
    assert (host.stats().num_forwards >= 3) == fits
    assert len(started) >= (3 if fits else iterations)


def test_a_load_that_never_ends_fails_the_ranks_that_wait() -> None:
    urls = ["rule://async", f"plain://dp{next(NAMES)}"]
    options = [{"num_blocks": 3, "load_deadline_s": 0.05}, {}]
    with attention_dp(2, urls, options) as (one, other):
        with pytest.raises(ExecutorDiedError, match="KV connector failed: no load ended"):
            one.submit(prompt(20), 1).result(WAIT_S)
        until(lambda: other.error is not None)


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "cancelled"])
def test_a_stop_or_a_cancel_meanwhile_leaves_a_load_some_grace(is_stopped: bool) -> None:
    url = "rule://async"
    with attention_dp(1, [url], [{"num_blocks": 3, "grace_s": 0.05}]) as (host,):
        handle = host.submit(prompt(20), 1)
        until(lambda: host.hooks.num_calls("get_finished") > 5)  # it is waited for
        assert host.error is None
        if is_stopped:
            host._executor._inbox.put(None)
        else:
            host.cancel(handle)
        with pytest.raises(ExecutorDiedError, match=r"within 0\.05 s of a stop or cancel"):
            handle.result(WAIT_S)


def test_ranks_stop_together() -> None:
    comms = meet(2)
    hosts = [engine(comm=comm) for comm in comms]
    on_all(lambda comm: hosts[comm.rank].shutdown(), comms)
    assert [host.error for host in hosts] == [None, None]

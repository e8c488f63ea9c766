"""Engines of several ranks: exact at equal degree, one in death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError, RequestCancelledError  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.ranks.engines import (  # noqa: E402
    AttentionDpEngine,
    TensorParallelEngine,
)
from adapter.conformance.host.ranks.job import JobDiedError  # noqa: E402
from tests.adapter.conformance.host.ranks import jobs  # noqa: E402
from tests.adapter.conformance.host.ranks.jobs import WAIT_S, prompt  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.model_dir(tmp_path_factory.mktemp("model"))


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.logits, other.logits, strict=True)
    return one.tokens == other.tokens and all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module", params=[2, 4])
def engine(request: pytest.FixtureRequest, model: Path) -> Iterator[TensorParallelEngine]:
    with TensorParallelEngine(jobs.llm_args(model, "RankWorker"), 48, request.param) as made:
        yield made


def test_batches_chunks_and_hits_make_no_difference(engine: TensorParallelEngine) -> None:
    texts = [prompt(30 + 3 * n, seed=n) for n in range(5)]
    alone = []
    for text in texts:
        alone.append(engine.submit(text, 6).result(WAIT_S))
        engine.forget_reuse(WAIT_S)
    together = [engine.submit(text, 6) for text in texts]
    assert all(same(a, t.result(WAIT_S)) for a, t in zip(alone, together, strict=True))
    again = engine.submit(texts[0], 6).result(WAIT_S)
    assert again.num_device_tokens > 0
    assert same(again, alone[0])


def test_every_rank_does_the_same(engine: TensorParallelEngine) -> None:
    engine.submit(prompt(20, seed=9), 4).result(WAIT_S)
    assert engine.forget_reuse(WAIT_S) > 0  # so every save was reported on all ranks
    stats = [engine.stats(rank) for rank in range(engine.size)]
    assert len({s.host.num_forwards for s in stats}) == 1
    assert {s.host.num_available_blocks for s in stats} == {48}
    assert {s.host.num_saving_pages for s in stats} == {0}
    assert stats[0].connector["saved"] > 0
    assert {s.connector["builders"] for s in stats} == {1}, "metadata is the leader's"
    hooks = [{row["hook"] for row in s.hooks} for s in stats]
    assert "build_connector_meta" in hooks[0]
    assert all("build_connector_meta" not in names for names in hooks[1:])
    assert all("start_load_kv" in names for names in hooks)


def test_requests_end_early_and_refusals_are_told(engine: TensorParallelEngine) -> None:
    engine.delay(1, 0.2, "launched")
    victim = engine.submit(prompt(20, seed=10), 60)
    victim.cancel()
    with pytest.raises(RequestCancelledError):
        victim.result(WAIT_S)
    with pytest.raises(ValueError, match="max_new_tokens"):
        engine.submit([1], 0).result(WAIT_S)
    assert engine.is_alive


def test_a_late_rank_makes_the_others_wait(engine: TensorParallelEngine) -> None:
    engine.submit(prompt(9), 2).result(WAIT_S)
    engine.delay(engine.size - 1, 0.4)
    began_s = time.monotonic()
    engine.submit(prompt(9), 2).result(WAIT_S)
    assert time.monotonic() - began_s >= 0.4


def test_skewed_completions_count_once_all_ranks_have_them(model: Path) -> None:
    def skewed(rank: int, options: HostOptions) -> HostOptions:
        return replace(options, load_skew=3 * (1 - rank))

    with TensorParallelEngine(jobs.llm_args(model, "RankWorker"), 48, 2, per_rank=skewed) as engine:
        for turn in range(3):
            engine.submit(prompt(12, seed=turn), 3).result(WAIT_S)
        engine.forget_reuse(WAIT_S)
        assert [engine.stats(rank).host.num_saving_pages for rank in (0, 1)] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_job_dies_with_any_of_its_ranks(model: Path, rank: int) -> None:
    with TensorParallelEngine(jobs.llm_args(model), 48, 2) as engine:
        pending = engine.submit(prompt(20), 100)
        engine.kill(rank)
        with pytest.raises(HostError):  # its rank's last word, or that there was none
            pending.result(WAIT_S)
        began_s = time.monotonic()
        assert f"{rank}: -9" in engine.wait_dead(10.0)
        assert time.monotonic() - began_s < 5.0
        assert not engine.is_alive
        with pytest.raises(JobDiedError):
            engine.submit(prompt(20), 2).result(WAIT_S)


def test_a_hook_that_raises_on_one_rank_kills_the_job(model: Path) -> None:
    with TensorParallelEngine(jobs.llm_args(model, "FailingWorker"), 48, 2) as engine:
        with pytest.raises(HostError):
            engine.submit(prompt(20), 4).result(WAIT_S)
        assert "rank 1 cannot load" in engine.wait_dead(10.0)


def test_a_stopped_rank_is_waited_for(model: Path) -> None:
    with TensorParallelEngine(jobs.llm_args(model), 48, 2) as engine:
        expected = engine.submit(prompt(12), 3).result(WAIT_S)
        engine.stop(1)
        pending = engine.submit(prompt(12), 3)
        with pytest.raises(TimeoutError):
            pending.result(0.3)
        engine.resume(1)
        assert same(pending.result(WAIT_S), expected)


def test_a_rank_that_does_not_come_up_fails_the_start(model: Path) -> None:
    with pytest.raises(JobDiedError, match="rank 1 has no pool"):
        TensorParallelEngine(jobs.llm_args(model, "UnregisteredWorker"), 48, 2)


def test_attention_dp_ranks_have_their_own_requests(model: Path) -> None:
    texts = [prompt(15 + 4 * n, seed=20 + n) for n in range(5)]
    with AttentionDpEngine(jobs.llm_args(model, "RankWorker"), 48, 2) as engine:
        # Unequal: rank 1 has one request, then none.
        handles = [engine.submit(text, 5, rank=int(n == 3)) for n, text in enumerate(texts)]
        results = [handle.result(WAIT_S) for handle in handles]
        assert engine.submit(texts[3], 5, rank=1).result(WAIT_S).num_device_tokens > 0
        assert engine.submit(texts[3], 5, rank=0).result(WAIT_S).num_device_tokens == 0
        engine.forget_reuse(WAIT_S)
        stats = [engine.stats(rank) for rank in range(2)]
        assert [s.connector["builders"] for s in stats] == [1, 2], "each rank's metadata is its own"
        assert [s.host.num_available_blocks for s in stats] == [48, 48]
        for text, result in zip(texts, results, strict=True):
            assert same(engine.submit(text, 5, rank=1).result(WAIT_S), result)

"""What a rank answers, and what it says when it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.engines import TensorParallelEngine
from adapter.conformance.host.ranks.injection import InjectedError
from tests.adapter.conformance.host.ranks import jobs
from tests.adapter.conformance.host.ranks.jobs import WAIT_S, prompt

pytestmark = pytest.mark.torch
HERE = "tests.adapter.conformance.host.ranks.jobs"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorParallelEngine]:
    model = jobs.model_dir(tmp_path_factory.mktemp("model"))
    with TensorParallelEngine(
        jobs.llm_args(model),
        48,
        2,
        options=HostOptions(epoch="E3"),
        environ={"TRTLLM_KVKEEP_TEST": "yes"},
        plugins=[f"{HERE}:note_rank"],
    ) as made:
        yield made


def test_each_rank_knows_its_place(engine: TensorParallelEngine) -> None:
    for rank in range(2):
        environ = engine.call(rank, f"{HERE}:environment")
        assert environ["TRTLLM_CONFORMANCE_RANK"] == str(rank)
        assert environ["TRTLLM_CONFORMANCE_EPOCH"] == "E3"
        assert environ["TRTLLM_KVKEEP_TEST"] == "yes"
        assert engine.stats(rank).passes[f"plugged into rank {rank}"] == 1


def test_errors_are_answers(engine: TensorParallelEngine) -> None:
    with pytest.raises(ValueError, match="as asked"):
        engine.call(1, f"{HERE}:fail")
    with pytest.raises(HostError, match=r"UnpicklableError\('1 2'\)"):
        engine.call(1, f"{HERE}:fail_unpicklably")
    with pytest.raises(KeyError):
        engine.job.ask(0, "nonsense").result(WAIT_S)
    with pytest.raises(HostError, match="takes no requests"):
        engine.job.ask(1, "submit", tokens=[1], max_new_tokens=1).result(WAIT_S)


def test_points_of_an_iteration_are_passed_and_traps_taken_back(
    engine: TensorParallelEngine,
) -> None:
    engine.arm(1, "bound", "fail")
    engine.disarm(1)
    engine.submit(prompt(9), 2).result(WAIT_S)
    passes = engine.stats(1).passes
    assert {"bound", "forward", "launched", "iteration"} <= passes.keys()
    assert engine.job.ask(0, "cancel", number=12345).result(WAIT_S) is False


def test_a_job_may_bring_its_own_forward(tmp_path: Path) -> None:
    args = jobs.llm_args(tmp_path)  # no model lies there
    with TensorParallelEngine(args, 8, 2, model=f"{HERE}:payload") as made:
        sizes = [made.call(rank, f"{HERE}:page_bytes") for rank in range(2)]
        assert sizes == [2 * jobs.BLOCK * 2, 2 * jobs.BLOCK * 3]
        assert len(made.submit(prompt(9), 2).result(WAIT_S).tokens) == 2


def test_an_executor_that_dies_takes_its_process_along(engine: TensorParallelEngine) -> None:
    engine.arm(0, "bound", "fail")
    pending = engine.submit(prompt(9), 2)
    with pytest.raises(HostError, match=InjectedError.__name__):
        pending.result(WAIT_S)
    assert "injected at bound" in engine.wait_dead(10.0)

"""A rank that is killed while it joins, or leaves: its job ends, the server forgets all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.ranks.engines import TensorParallelEngine  # noqa: E402
from adapter.conformance.host.ranks.job import JobDiedError  # noqa: E402
from adapter.conformance.host.weights import TINY, write_model_dir  # noqa: E402
from tests.adapter.enginerig import launched  # noqa: E402
from tests.e2e.ranked import WAIT_S, check_nothing_left, check_pages_back, split  # noqa: E402
from tests.e2e.torchhost import BLOCK, prompt, same  # noqa: E402
from tests.wire.process import ServerProcess  # noqa: E402

pytestmark = pytest.mark.torch

TEXT = prompt(5 * BLOCK + 2, seed=410)


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Two busy cores must not turn hits into misses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
        patch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture(scope="module")
def survivor(server: ServerProcess, model: Path) -> Iterator[TensorParallelEngine]:
    """Another engine of two ranks, which must not notice."""
    with split(model, server.url, 2) as host:
        host.submit(TEXT, 3).result(WAIT_S)
        host.forget_reuse(WAIT_S)
        yield host


def check_survivor(survivor: TensorParallelEngine, before: Any) -> None:
    result = survivor.submit(TEXT, 3).result(WAIT_S)
    assert result.num_loaded_tokens == 5 * BLOCK
    assert same(result, before)
    survivor.forget_reuse(WAIT_S)
    check_pages_back(survivor)


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_rank_killed_while_it_joins(
    server: ServerProcess, model: Path, survivor: TensorParallelEngine, point: str
) -> None:
    before = survivor.submit(TEXT, 3).result(WAIT_S)
    survivor.forget_reuse(WAIT_S)
    with split(model, server.url, 2, joined=False) as host:
        host.arm(1, f"REGISTER_KV_CACHE.{point}", "die")
        victim = host.submit(TEXT, 3)
        assert "1: -9" in host.wait_dead(15.0)
        try:
            result = victim.result(WAIT_S)
        except HostError:
            pass
        else:  # it was done before that rank came to register
            assert same(result, before)
            assert result.num_loaded_tokens == 0
    check_nothing_left(server, 2)
    check_survivor(survivor, before)


@pytest.mark.parametrize(("rank", "point"), [(0, "before"), (0, "after"), (1, "before")])
def test_a_rank_killed_while_it_leaves(
    server: ServerProcess, model: Path, survivor: TensorParallelEngine, rank: int, point: str
) -> None:
    before = survivor.submit(TEXT, 3).result(WAIT_S)
    survivor.forget_reuse(WAIT_S)
    with split(model, server.url, 2, options=HostOptions(epoch="E4")) as engine:
        assert same(engine.submit(TEXT, 3).result(WAIT_S), before)
        engine.forget_reuse(WAIT_S)
        engine.arm(rank, f"UNREGISTER.{point}", "die")
        with pytest.raises(JobDiedError):
            engine.shutdown()
    check_nothing_left(server, 2)
    check_survivor(survivor, before)

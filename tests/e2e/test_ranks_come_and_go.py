"""A rank that is killed while it joins, or leaves: its job ends, the server forgets all of it.

And a server that becomes another one between two ranks' loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.ranks.engines import TensorParallelEngine  # noqa: E402
from adapter.conformance.host.ranks.job import JobDiedError  # noqa: E402
from tests.adapter.enginerig import write_model  # noqa: E402
from tests.adapter.hostlike import tokens  # noqa: E402
from tests.adapter.rankrig import RankRig  # noqa: E402
from tests.e2e.ranked import WAIT_S, check_nothing_left, check_pages_back, split  # noqa: E402
from tests.e2e.torchhost import BLOCK, prompt, same  # noqa: E402
from tests.wire.process import ServerProcess, wait_until  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("patient")]

TEXT = prompt(5 * BLOCK + 2, seed=410)
PAGES = tokens(22)
"""For ranks without a model."""


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


def rarely(*row: Any) -> Any:
    return pytest.param(*row, marks=pytest.mark.slow)


@pytest.mark.parametrize("point", [rarely("before"), "after"])
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


@pytest.mark.parametrize(("rank", "point"), [rarely(0, "before"), (0, "after"), (1, "before")])
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


def test_a_rank_loads_what_was_promised_before_the_server_was_another(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    """However late it is: what is loaded stays mapped until no offer of that server is open."""
    with ExitStack() as stack:
        first = stack.enter_context(ServerProcess(short_dir, shm_dir / "a"))
        rig = RankRig(first.url, write_model(tmp_path / "m"), 2).register()
        try:
            rig.run_saved(PAGES)
            assert rig.run_hit(PAGES, 20).offered == 20
            link = rig.followers[0].worker.link
            assert link is not None
            joined = link.joined
            assert joined is not None

            def is_elsewhere() -> bool:
                now = link.joined
                return now is not None and now.epoch != joined.epoch

            def restart(rank: int) -> None:
                """The first rank has begun its load; the other begins after all of this."""
                if rank == 1:
                    rig.before_rank = lambda rank: None
                    first.kill()
                    stack.enter_context(ServerProcess(short_dir, shm_dir / "b"))
                    assert wait_until(is_elsewhere, 30.0), link.counters

            rig.before_rank = restart
            assert rig.run(PAGES).offered == 20
            assert is_elsewhere()
            assert not any(worker.counters().get("loads_failed") for worker in rig.workers)
        finally:
            rig.close()

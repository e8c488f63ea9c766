"""One engine on several ranks, each a process: exact hits, one rank late, failing, gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.weights import LATENT, SLIDING, write_model_dir  # noqa: E402
from tests.e2e.ranked import (  # noqa: E402
    WAIT_S,
    Reference,
    Survivors,
    await_registered,
    check_nothing_left,
    check_pages_back,
    gauges,
    split,
)
from tests.e2e.torchhost import BLOCK, engine, prompt, same  # noqa: E402
from tests.wire.process import ServerProcess, wait_until  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("patient")]


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(LATENT, num_attention_heads=4)
    return write_model_dir(tmp_path_factory.mktemp("latent"), config)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two layer groups: one window shorter than the prompts, one longer."""
    long = replace(SLIDING, layer_windows=(0, 512, 0, 512))
    folder = tmp_path_factory.mktemp("grouped")
    return {
        "windows": write_model_dir(folder / "windows", SLIDING),
        "groups": write_model_dir(folder / "groups", long),
    }


@pytest.fixture(scope="module")
def references(model: Path, latent: Path) -> Iterator[Any]:
    """``references(size)``: runs of that degree without any cache, each prompt once."""
    made: dict[tuple[int, Path, str], Reference] = {}
    with ExitStack() as stack:

        def reference(size: int, of: Path = model, kv_dtype: str = "auto") -> Reference:
            if (size, of, kv_dtype) not in made:
                args = {"kv_dtype": kv_dtype}
                host = stack.enter_context(split(of, None, size, args=args))
                results: dict[tuple[tuple[int, ...], int], Any] = {}

                def run(text: list[int], count: int) -> Any:
                    if (tuple(text), count) not in results:
                        result = host.submit(text, count).result(WAIT_S)
                        results[tuple(text), count] = result
                        host.forget_reuse(WAIT_S)
                    return results[tuple(text), count]

                made[size, of, kv_dtype] = run
            return made[size, of, kv_dtype]

        yield reference


@pytest.fixture(scope="module")
def survivors(server: ServerProcess, model: Path) -> Iterator[Survivors]:
    with ExitStack() as stack:
        yield Survivors(lambda size: stack.enter_context(split(model, server.url, size)))


def rarely(*row: Any) -> Any:
    return pytest.param(*row, marks=pytest.mark.slow)


@pytest.mark.parametrize("size", [2, 4])
def test_hits_are_exact_and_stay_within_the_degree(
    server: ServerProcess, model: Path, references: Any, size: int
) -> None:
    text = prompt(7 * BLOCK + 5, seed=size)
    with split(model, server.url, size) as host:
        first = host.submit(text, 6).result(WAIT_S)
        assert first.num_loaded_tokens == 0
        assert same(first, references(size)(text, 6))
        host.forget_reuse(WAIT_S)
        for length in (7 * BLOCK + 5, 7 * BLOCK, 5 * BLOCK + 1):
            result = host.submit(text[:length], 6).result(WAIT_S)
            assert result.num_loaded_tokens == (length - 1) // BLOCK * BLOCK
            assert same(result, references(size)(text[:length], 6))
            host.forget_reuse(WAIT_S)
        loaded = [host.stats(rank).connector["pages_loaded"] for rank in range(size)]
        assert len(set(loaded)) == 1, "every rank loads its share"
        check_pages_back(host)
    with split(model, server.url, size) as other:  # another engine of the same degree
        result = other.submit(text, 6).result(WAIT_S)
        assert result.num_loaded_tokens == 7 * BLOCK
        assert same(result, references(size)(text, 6))
    with engine(model, server.url) as whole:  # other shares are other bytes
        assert whole.submit(text, 6).result(WAIT_S).num_loaded_tokens == 0
    check_nothing_left(server, 0)


@pytest.mark.parametrize(("epoch", "overlap"), [("E1", True), ("E3", False), ("E4", True)])
def test_epochs(
    server: ServerProcess, model: Path, references: Any, epoch: Any, overlap: bool
) -> None:
    options = HostOptions(epoch=epoch, overlap=overlap)

    def skewed(rank: int, common: HostOptions) -> HostOptions:
        return replace(common, load_skew=2 * rank)

    texts = [prompt(3 * BLOCK + 7 * n, seed=100 + n + int(epoch[1]) * 10) for n in range(4)]
    with split(model, server.url, 2, options=options, per_rank=skewed) as host:
        for _ in range(2):
            handles = [host.submit(text, 4) for text in texts]
            for text, handle in zip(texts, handles, strict=True):
                assert same(handle.result(WAIT_S), references(2)(text, 4))
            host.forget_reuse(WAIT_S)
        assert host.stats(1).connector["pages_loaded"] > 0
        check_pages_back(host)
    check_nothing_left(server, 0)


@pytest.mark.parametrize("mode", ["sync", "async", "layerwise"])
def test_load_modes(server: ServerProcess, model: Path, references: Any, mode: str) -> None:
    options = HostOptions(epoch="E4")
    texts = [prompt(4 * BLOCK + 3 + n, seed=200 + n + len(mode) * 10) for n in range(3)]
    environ = {"TRTLLM_KVKEEP_LOAD_MODE": mode}
    with split(model, server.url, 2, options=options, environ=environ) as host:
        for turn in range(3):
            handles = [host.submit(text, 4) for text in texts]
            for text, handle in zip(texts, handles, strict=True):
                result = handle.result(WAIT_S)
                assert result.num_loaded_tokens == (4 * BLOCK if turn else 0)
                assert same(result, references(2)(text, 4))
            host.forget_reuse(WAIT_S)
        check_pages_back(host)
    check_nothing_left(server, 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["v2", "groups", "windows", "private", "v2-private", "fp8"])
def test_layouts(
    server: ServerProcess, model: Path, grouped: dict[str, Path], references: Any, name: str
) -> None:
    is_v2, of = not name.startswith(("private", "fp8")), grouped.get(name, model)
    options = HostOptions(
        epoch="E3",
        layout="v2" if is_v2 else "v1",
        private_pool=name.endswith("private"),
    )
    dtype = "fp8" if name == "fp8" else "auto"
    texts = [prompt(6 * BLOCK + 3 + n, seed=250 + n + 10 * len(name)) for n in range(3)]
    # In parts each part of an offer must be loadable: every block that the window has left, too.
    args = {"kv_dtype": dtype, "enable_chunked_prefill": False}
    with split(of, server.url, 2, options=options, args=args) as host:
        for turn in range(2):
            handles = [host.submit(text, 4) for text in texts]
            for text, handle in zip(texts, handles, strict=True):
                result = handle.result(WAIT_S)
                assert result.num_loaded_tokens == (6 * BLOCK if turn else 0)
                assert same(result, references(2, of, dtype)(text, 4))
            host.forget_reuse(WAIT_S)
        for rank in range(2):
            seen = host.stats(rank)
            assert seen.host.num_saving_pages == 0
            assert seen.connector.get("held_pages", 0) == 0
    check_nothing_left(server, 0)


@pytest.mark.parametrize(("size", "late"), [(2, 1), rarely(4, 3)])
def test_a_hit_only_when_every_rank_holds_its_share(
    server: ServerProcess, model: Path, references: Any, survivors: Survivors, size: int, late: int
) -> None:
    """One rank's saves are seconds late: until then nothing of it is offered to anybody."""
    survivor = survivors[size]
    text = prompt(5 * BLOCK + 2, seed=300)
    with split(model, server.url, size) as host:
        host.delay(late, 3.0, "STORE.before")
        assert same(host.submit(text, 3).result(WAIT_S), references(size)(text, 3))
        assert wait_until(lambda: host.stats(0).passes.get("COMMIT.after", 0) > 0, 2.0)
        result = survivor.submit(text, 3).result(WAIT_S)
        assert result.num_loaded_tokens == 0
        assert same(result, references(size)(text, 3))
        survivor.forget_reuse(WAIT_S)
        host.forget_reuse(WAIT_S)  # waits for the saves of all ranks
        result = host.submit(text, 3).result(WAIT_S)
        assert result.num_loaded_tokens == 5 * BLOCK
        assert same(result, references(size)(text, 3))
        host.forget_reuse(WAIT_S)
        check_pages_back(host)
    check_nothing_left(server, survivors.num_ranks)


@pytest.mark.parametrize(("size", "rank"), [(2, 1), (4, 3)])
def test_a_rank_that_loads_seconds_late(
    server: ServerProcess, model: Path, references: Any, survivors: Survivors, size: int, rank: int
) -> None:
    survivor = survivors[size]
    text = prompt(5 * BLOCK + 2, seed=310)
    survivor.submit(text, 3).result(WAIT_S)
    survivor.forget_reuse(WAIT_S)
    with split(model, server.url, size) as host:
        for point in ("copy.before", "bound"):
            host.delay(rank, 2.0, point)
            late = host.submit(text, 3)
            began_s = time.monotonic()
            other = survivor.submit(text, 3).result(WAIT_S)
            assert time.monotonic() - began_s < 1.5, "another engine waits for nobody"
            assert other.num_loaded_tokens == 5 * BLOCK
            result = late.result(WAIT_S)
            assert result.num_loaded_tokens == 5 * BLOCK
            assert same(result, references(size)(text, 3))
            for one in (survivor, host):
                one.forget_reuse(WAIT_S)
    check_nothing_left(server, survivors.num_ranks)


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), rarely(4, 3)])
def test_a_load_that_fails_on_one_rank_ends_that_job_alone(
    server: ServerProcess, model: Path, references: Any, survivors: Survivors, size: int, rank: int
) -> None:
    survivor = survivors[size]
    text = prompt(5 * BLOCK + 2, seed=320 + rank)
    survivor.submit(text, 3).result(WAIT_S)
    survivor.forget_reuse(WAIT_S)
    with split(model, server.url, size) as host:
        host.arm(rank, "copy.before", "fail")
        with pytest.raises(HostError):
            host.submit(text, 3).result(WAIT_S)
        assert "injected at copy.before" in host.wait_dead(15.0)
    check_nothing_left(server, survivors.num_ranks)
    result = survivor.submit(text, 3).result(WAIT_S)
    assert result.num_loaded_tokens == 5 * BLOCK
    assert same(result, references(size)(text, 3))
    survivor.forget_reuse(WAIT_S)
    check_pages_back(survivor)


@pytest.mark.parametrize(("size", "rank"), [(2, 1), rarely(4, 3)])
def test_a_rank_that_lost_its_mapping_does_not_serve_a_promise(
    server: ServerProcess, model: Path, references: Any, survivors: Survivors, size: int, rank: int
) -> None:
    """The offer stands, one rank's share cannot be read: that job ends rather than compute on."""
    survivor = survivors[size]
    text = prompt(5 * BLOCK + 2, seed=330)
    survivor.submit(text, 3).result(WAIT_S)
    survivor.forget_reuse(WAIT_S)
    with split(model, server.url, size) as host:
        assert host.call(rank, "tests.e2e.rankpoints:lose_extents") > 0
        victim = host.submit(text, 3)
        with pytest.raises(HostError):
            victim.result(WAIT_S)
        assert f"rank {rank}" in host.wait_dead(15.0)
        assert "LoadError" in str(host.job.causes)
    check_nothing_left(server, survivors.num_ranks)
    result = survivor.submit(text, 3).result(WAIT_S)
    assert result.num_loaded_tokens == 5 * BLOCK
    assert same(result, references(size)(text, 3))
    survivor.forget_reuse(WAIT_S)


LOADING = [
    *((2, 0, point) for point in ("LOOKUP.after", "RETRIEVE.after", "bound")),
    *((2, 1, point) for point in ("copy.before", "copy.after")),
    (4, 3, "copy.before"),
]
MORE_LOADING = [
    *((2, 0, point) for point in ("LOOKUP.before", "RETRIEVE.before", "queried", "copy.before")),
    *((2, 1, point) for point in ("bound", "launched")),
    *((4, 0, point) for point in ("LOOKUP.after", "RETRIEVE.after", "queried", "copy.after")),
    *((4, 3, point) for point in ("bound", "copy.after")),
]
SAVING = [
    (2, 0, "STORE.after"),
    (2, 0, "COMMIT.before"),
    (2, 1, "answered"),
    (2, 1, "COMMIT.before"),
]
MORE_SAVING = [
    *((2, 0, point) for point in ("STORE.before", "answered", "COMMIT.after")),
    *((2, 1, point) for point in ("STORE.before", "STORE.after", "COMMIT.after")),
    *((4, rank, point) for rank in (0, 3) for point in ("STORE.after", "COMMIT.before")),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("size", "rank", "point"), [*LOADING, *starmap(rarely, MORE_LOADING)])
def test_a_rank_killed_while_loading(
    server: ServerProcess,
    model: Path,
    references: Any,
    survivors: Survivors,
    size: int,
    rank: int,
    point: str,
) -> None:
    survivor = survivors[size]
    text = prompt(5 * BLOCK + 2, seed=400)
    survivor.submit(text, 3).result(WAIT_S)
    survivor.forget_reuse(WAIT_S)
    with split(model, server.url, size) as host:
        host.arm(rank, point, "die")
        victim = host.submit(text, 3)
        assert f"{rank}: -9" in host.wait_dead(15.0)
        with pytest.raises(HostError):
            victim.result(WAIT_S)
    check_nothing_left(server, survivors.num_ranks)
    result = survivor.submit(text, 3).result(WAIT_S)
    assert result.num_loaded_tokens == 5 * BLOCK
    assert same(result, references(size)(text, 3))
    survivor.forget_reuse(WAIT_S)
    check_pages_back(survivor)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("size", "rank", "point"), [*SAVING, *starmap(rarely, MORE_SAVING)])
def test_a_rank_killed_while_saving(
    server: ServerProcess,
    model: Path,
    references: Any,
    survivors: Survivors,
    size: int,
    rank: int,
    point: str,
) -> None:
    """Whatever became of the save: who asks for the prompt gets right bytes or computes."""
    survivor = survivors[size]
    text = prompt(5 * BLOCK + 2, seed=crc32(f"{rank} {point}".encode()))
    with split(model, server.url, size) as host:
        host.arm(rank, point, "die")
        victim = host.submit(text, 3)
        assert f"{rank}: -9" in host.wait_dead(15.0)
        try:
            assert same(victim.result(WAIT_S), references(size)(text, 3))  # before the save
        except HostError:
            pass
    check_nothing_left(server, survivors.num_ranks)
    for turn in range(2):
        result = survivor.submit(text, 3).result(WAIT_S)
        assert same(result, references(size)(text, 3))
        survivor.forget_reuse(WAIT_S)
        if turn:
            assert result.num_loaded_tokens == 5 * BLOCK, "what one engine left undone another does"
    check_pages_back(survivor)


@pytest.mark.parametrize("size", [2, 4])
def test_a_latent_is_stored_once_and_read_by_all(
    server: ServerProcess, latent: Path, references: Any, size: int
) -> None:
    text = prompt(5 * BLOCK + 2, seed=500)
    before = gauges(server)
    with split(latent, server.url, size) as host:
        warmed = gauges(server)
        host.submit(text, 3).result(WAIT_S)
        host.forget_reuse(WAIT_S)
        after = gauges(server)
        assert after["slots_held"] - warmed["slots_held"] == 5, "one copy for all ranks"
        assert after["chunks"] - warmed["chunks"] == 5
        result = host.submit(text, 3).result(WAIT_S)
        assert result.num_loaded_tokens == 5 * BLOCK
        assert same(result, references(size, latent)(text, 3))
        loads = [host.stats(rank).connector["pages_loaded"] for rank in range(size)]
        assert min(loads) >= 5, "every rank reads it"
        saves = [host.stats(rank).connector.get("chunks_saved", 0) for rank in range(size)]
        assert saves[0] > 0
        assert not any(saves[1:])
        host.forget_reuse(WAIT_S)
        check_pages_back(host)
    assert gauges(server)["sessions"] == before["sessions"]
    check_nothing_left(server, before["sessions"])


def test_a_server_that_dies_or_stops_is_not_noticed_by_requests(
    short_dir: Path, shm_dir: Path, model: Path, references: Any
) -> None:
    texts = [prompt(4 * BLOCK + 1 + n, seed=600 + n) for n in range(3)]

    def run(host: Any) -> list[Any]:
        results = [host.submit(text, 3) for text in texts]
        done = [handle.result(WAIT_S) for handle in results]
        for text, result in zip(texts, done, strict=True):
            assert same(result, references(2)(text, 3))
        return done

    with ServerProcess(short_dir, shm_dir / "a") as first, split(model, first.url, 2) as host:
        run(host)
        host.forget_reuse(WAIT_S)
        assert all(result.num_loaded_tokens for result in run(host))
        host.forget_reuse(WAIT_S)
        first.process.send_signal(19)
        run(host)
        first.process.send_signal(18)
        host.forget_reuse(WAIT_S)
        run(host)
        first.kill()
        run(host)
        host.forget_reuse(WAIT_S)
        run(host)
        with ServerProcess(short_dir, shm_dir / "b") as second:
            host.forget_reuse(WAIT_S)
            await_registered(host)
            run(host)
            host.forget_reuse(WAIT_S)
            assert all(result.num_loaded_tokens for result in run(host))
            host.forget_reuse(WAIT_S)
            check_pages_back(host)
            assert gauges(second)["sessions"] == 2

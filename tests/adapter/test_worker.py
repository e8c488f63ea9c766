"""The worker's hooks against a real server: registration, exact loads, loud failures."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapter.copy import LoadError
from adapter.metadata import ConnectorMetadata
from adapter.pages import SharedPool
from adapter.worker import KvkeepConnectorWorker
from protocol.errors import ConfigError, ErrorCode
from tests.adapter.enginerig import (
    PAGE_BYTES,
    PAGE_SHAPE,
    SIZE,
    EngineRig,
    Stream,
    launched,
    page_content,
    write_model,
)
from tests.adapter.hostlike import Args, CacheConfig, Output, Report, tokens
from tests.adapter.test_identity import FakeTensor
from tests.adapter.test_layouts import Group, Layout, Region
from tests.wire.process import ServerProcess, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


@pytest.fixture
def rig(server: ServerProcess, tmp_path: Path) -> Iterator[EngineRig]:
    made = EngineRig(server.url, write_model(tmp_path / "m")).register()
    yield made
    made.close()


def test_memory_that_cannot_be_shared_is_saved_through_the_ring_and_loaded_as_it_is(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    private = np.zeros((64, *PAGE_SHAPE), dtype=np.float32)
    rig.tensor, rig.pages = FakeTensor(private), private.reshape(64, -1).view(np.uint8)
    rig.register()
    prompt = tokens(22)
    try:
        rig.run_saved(prompt)
        assert rig.run_saved(prompt).offered == 20
    finally:
        rig.close()


def test_a_second_pool_ends_caching_with_one_line(
    rig: EngineRig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        rig.worker.register_kv_caches(rig.tensor)
    lines = [r.getMessage() for r in caplog.records if "uncached" in r.getMessage()]
    assert len(lines) == 1
    assert "a second pool" in lines[0]
    assert rig.run(tokens(22)) is not None


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (CacheConfig(enable_block_reuse=False), "enable_block_reuse"),
        (CacheConfig(host_cache_size=1 << 30), "host_cache_size"),
    ],
)
def test_engines_that_cannot_be_cached_say_why_once(
    server: ServerProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    cache: CacheConfig,
    words: str,
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m"), args=Args(kv_cache_config=cache))
    rig.register()
    rig.run(tokens(22))
    lines = [r.getMessage() for r in caplog.records if "uncached" in r.getMessage()]
    assert len(lines) == 1
    assert words in lines[0]


def test_a_chunk_size_that_does_not_fit_stops_the_engine(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", "6")
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    with pytest.raises(ConfigError, match="valid are 4, 8, 12") as caught:
        rig.worker.register_kv_caches(rig.tensor)
    assert caught.value.code == ErrorCode.CHUNK_SIZE_INVALID


def test_chunks_of_several_blocks(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", "12")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(41)
    try:
        rig.run_saved(prompt)
        assert rig.run_saved(prompt).offered == 36
        assert rig.run_saved(prompt[:36]).offered == 32  # the last block of a chunk is left out
        assert rig.run_saved(prompt[:30]).offered == 24
    finally:
        rig.close()


def test_a_tensor_inside_a_larger_pool(server: ServerProcess, tmp_path: Path) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    rig.tensor = FakeTensor(rig.tensor.array[8:40])
    rig.pages = rig.pages[8:40]
    rig.register()
    prompt = tokens(22)
    rig.run_saved(prompt)
    assert rig.run_saved(prompt).offered == 20
    rig.close()


def test_replays_stale_and_absent_metadata(rig: EngineRig) -> None:  # host contract rule 8
    worker, stream = rig.worker, Stream()
    worker.start_load_kv(stream)
    worker.bind_connector_meta(None)
    worker.start_load_kv(stream)
    prompt = tokens(22)
    rig.run_saved(prompt)
    request, offered, pages = rig.begin(prompt)
    assert offered == 20
    rig.iterate(Output([Report(request.request_id, prompt, pages, 0, 2)]))
    rig.check(prompt, pages, 5)
    rig.pages[pages[0]] = 7
    worker.start_load_kv(stream)  # again in that iteration: what was computed since stays
    assert (rig.pages[pages[0]] == 7).all()


def test_metadata_that_comes_again_or_late_proves_nothing(rig: EngineRig) -> None:
    # A copy is published when a report bound after it names its request alive (P04): an old report
    # does not know that the request was cancelled meanwhile, and its pages filled by another.
    prompt = tokens(22)
    request, _, pages = rig.begin(prompt)
    report = Report(request.request_id, prompt, pages, 0, len(prompt))
    first = rig.scheduler.build_connector_meta(Output([report]))
    second = rig.scheduler.build_connector_meta(Output())
    rig.worker.bind_connector_meta(first)
    running = rig.worker._running
    assert running is not None
    ledger = running.saver._ledger
    (entry,) = ledger.entries()
    alive = entry.alive_bind
    assert alive == ledger.num_binds
    for metadata in (first, second, first, second):
        rig.worker.bind_connector_meta(metadata)
    assert (entry.alive_bind, ledger.num_binds) == (alive, alive + 1)


def test_a_promise_that_cannot_be_kept_raises(rig: EngineRig) -> None:
    rig.worker.bind_connector_meta(ConnectorMetadata(1, failure="the reason"))
    with pytest.raises(LoadError, match="the reason"):
        rig.worker.start_load_kv(Stream())


def test_a_load_of_an_unknown_extent_raises_and_touches_nothing(rig: EngineRig) -> None:
    prompt = tokens(22)
    rig.run_saved(prompt)
    request, _, pages = rig.begin(prompt)
    metadata = rig.scheduler.build_connector_meta(
        Output([Report(request.request_id, prompt, pages, 0, 2)])
    )
    (load,) = metadata.loads
    broken = replace(metadata, loads=(replace(load, epoch=b"?" * 16),))
    rig.worker.bind_connector_meta(broken)
    with pytest.raises(LoadError):
        rig.worker.start_load_kv(Stream())
    rig.check(prompt, pages, 0)
    # Should the host survive it, what it computes on these pages must reach nobody.
    assert "a load failed" in rig.scheduler._engine.uncached_because


def test_before_a_pool_is_registered_ids_go_back_and_a_promise_is_an_error(tmp_path: Path) -> None:
    rig = EngineRig(f"ipc://{tmp_path}/nobody", write_model(tmp_path / "m"))
    assert rig.worker.get_finished([3], [4]) == ([3], [4])
    rig.worker.bind_connector_meta(ConnectorMetadata(1))
    rig.worker.start_load_kv(Stream())
    rig.worker.bind_connector_meta(ConnectorMetadata(2, failure="the reason"))
    with pytest.raises(LoadError, match="the reason"):
        rig.worker.start_load_kv(Stream())
    rig.close()


def test_nonsense_pages_end_saving_but_not_the_engine(
    rig: EngineRig, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = ConnectorMetadata(1, new_pages=(np.array([64], dtype=np.int32),))
    rig.worker.bind_connector_meta(metadata)
    assert "uncached" in caplog.text
    rig.worker.start_load_kv(Stream())
    rig.worker.wait_for_save(Stream())
    assert rig.worker.get_finished([], []) == ([], [])


def test_layer_hooks_and_callable_do_nothing(rig: EngineRig) -> None:
    assert rig.worker.register_forward_pass_callable() is None
    rig.worker.wait_for_layer_load(0, Stream())
    rig.worker.save_kv_layer(0, Stream())


def test_attention_data_parallelism_is_declared() -> None:
    assert KvkeepConnectorWorker.supports_attention_dp is True


def test_a_stream_without_events_is_taken_as_done(rig: EngineRig) -> None:
    rig.stream = object()  # type: ignore[assignment]
    prompt = tokens(22)
    rig.run_saved(prompt)
    assert rig.run_saved(prompt).offered == 20


class LayoutRig(EngineRig):
    """The second cache manager's memory: K and V apart, gaps between the pages of K."""

    STRIDES = (640, 512)

    def register(self) -> LayoutRig:
        count = len(self.pages)
        self.pool = SharedPool.create(256 + count * sum(self.STRIDES))
        regions, start = [], 256
        self.halves: list[np.ndarray] = []
        for role, stride in zip(("key", "value"), self.STRIDES, strict=True):
            buffers = [(layer, role, 1) for layer in (0, 1)]
            regions.append(Region(self.pool.address + start, 512, stride, count, buffers))
            rows = self.pool.view[start : start + count * stride].reshape(count, stride)
            self.halves.append(rows)
            start += count * stride
        layout = Layout(SIZE, [Group(0, [0, 1], None, regions)], "torch.float32")
        self.worker.register_kv_cache_layout(layout)
        self.scheduler.wait_for_initialization()
        return self

    def wipe(self, pages: list[int]) -> None:
        for half in self.halves:
            half[pages] = 0xFF

    def fill(self, tokens: list[int], pages: list[int], first: int) -> None:
        for block in range(first, len(tokens) // SIZE):
            content = page_content(tokens[: (block + 1) * SIZE])
            for at, half in enumerate(self.halves):
                half[pages[block], :512] = content[512 * at : 512 * (at + 1)]

    def check(self, tokens: list[int], pages: list[int], stop: int) -> None:
        for block, page in enumerate(pages):
            found = np.concatenate([half[page, :512] for half in self.halves])
            expected = page_content(tokens[: (block + 1) * SIZE]) if block < stop else 0xFF
            assert (found == expected).all(), block
        assert (self.halves[0][pages, 512:] == 0xFF).all()  # the gaps


def test_a_layout_of_several_regions_is_saved_and_loaded(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = LayoutRig(server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(22)
    try:
        rig.run_saved(prompt)
        assert rig.run_saved(prompt).offered == 20
    finally:
        rig.close()


def test_a_layout_that_is_not_understood_runs_uncached(
    server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    rig.worker.register_kv_cache_layout(object())
    assert "uncached" in caplog.text
    assert rig.run(tokens(22)).offered == 0


def test_two_engines_may_have_their_pools_in_one_allocation(
    server: ServerProcess, tmp_path: Path
) -> None:
    model, rigs = write_model(tmp_path / "m"), []
    size = 64 * PAGE_BYTES
    pool = SharedPool.create(4096 + 2 * size)
    for at in range(2):
        rig = EngineRig(server.url, model)
        part = pool.view[4096 + at * size :][:size]
        rig.pages = part.reshape(64, PAGE_BYTES)
        rig.tensor = FakeTensor(part.view(np.float32).reshape(64, *PAGE_SHAPE))
        rigs.append(rig.register())
    first, second = rigs
    try:
        first.run_saved(tokens(22))
        assert second.run_hit(tokens(22), 20).offered == 20
        second.close()
        assert first.run_hit(tokens(22), 20).offered == 20
    finally:
        for rig in rigs:
            rig.close()


def test_a_cache_that_is_none_runs_uncached(
    server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    rig.worker.register_kv_caches(object())
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line.startswith("kvkeep: this engine runs uncached: the pool could not be registered")
    assert rig.run(tokens(22)).offered == 0
    rig.close()


class BrokenStream(Stream):
    def record_event(self) -> Stream:
        raise RuntimeError("no event is to be had")


def test_a_mark_that_cannot_be_made_drops_the_save_and_nothing_else(rig: EngineRig) -> None:
    prompt = tokens(22)
    rig.stream = BrokenStream()
    outcome = rig.run_saved(prompt)
    assert outcome.kept
    assert rig.worker.counters()["saves_dropped_stream_failed"] == 1
    rig.stream = Stream()
    assert rig.run_saved(prompt).offered == 0
    assert rig.run_saved(prompt).offered == 20


def test_an_engine_that_goes_away_unregisters_and_frees_its_pool(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    rig.run_saved(tokens(22))
    engine = weakref.ref(rig.scheduler._engine)
    mapping = weakref.ref(rig.pool.mapping)
    del rig
    assert wait_until(lambda: gc.collect() >= 0 and engine() is None and mapping() is None, 10)


def test_shutdown_is_bounded_and_repeatable(rig: EngineRig) -> None:
    rig.worker.shutdown()
    rig.worker.shutdown()
    assert rig.query is not None
    assert rig.run(tokens(22)).offered == 0


def test_construction_alone_starts_nothing(server: ServerProcess, tmp_path: Path) -> None:
    import threading

    before = threading.active_count()
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    assert isinstance(rig.worker, KvkeepConnectorWorker)
    assert threading.active_count() == before

"""B07: the n-th chunk of a load fails: before the offer a miss, after it the adapter's own mapping
or an error; no request ever computes on pages that were not filled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapter.copy import LoadError
from adapter.metadata import ConnectorMetadata
from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES
from protocol.ids import Epoch
from protocol.layout import SLOT_DTYPE
from server.shell.extents import extent_path
from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess

ARENA = ("--l1-size", "8M", "--extent-size", "64K")
NUM = 40
"""Chunks of the prompt: they lie in several extents."""

PROMPT = tokens(NUM * SIZE + 2)
MODES = ["sync", "async", "layerwise"]
CHUNKS = [0, NUM // 2, NUM - 1]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    mode = str(request.param)
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", mode)
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    return mode


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir / "a", *ARENA) as process:
        yield process


@pytest.fixture
def rig(mode: str, server: ServerProcess, tmp_path: Path) -> Iterator[EngineRig]:
    made = EngineRig(server.url, write_model(tmp_path / "m"), num_pages=256).register()
    while made.run_saved(PROMPT).offered < NUM * SIZE:  # until all of it is held and mapped
        assert made.next_id < 20, made.worker.counters()
    yield made
    made.close()


def planned(rig: EngineRig) -> tuple[FakeRequest, int, list[int], ConnectorMetadata]:
    """A request whose load has been ordered and not begun."""
    request, offered, pages = rig.begin(PROMPT)
    assert offered == NUM * SIZE
    reports = []
    if request.request_id not in rig.parked:
        reports.append(Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered))
    return request, offered, pages, rig.scheduler.build_connector_meta(Output(reports))


def slot_of(metadata: ConnectorMetadata, chunk: int) -> tuple[int, int]:
    (load,) = metadata.loads
    extent, slot, _ = np.frombuffer(load.slots, dtype=SLOT_DTYPE)[chunk].tolist()
    return extent, slot


def play(rig: EngineRig, request: FakeRequest, metadata: ConnectorMetadata) -> None:
    """An iteration with these instructions, and what follows until the pages may be used.

    Raises:
        LoadError: instead.
    """
    worker = rig.worker
    worker.bind_connector_meta(metadata)
    worker.start_load_kv(rig.stream)
    if request.request_id in rig.parked:
        rig.collect()
        end_s = time.monotonic() + 10
        while rig.loading:
            assert time.monotonic() < end_s
            rig.collect()
        return
    for layer in range(rig.num_layers):
        worker.wait_for_layer_load(layer, rig.stream)
    worker.wait_for_save(rig.stream)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_b07_before_the_offer_it_is_a_miss(rig: EngineRig, chunk: int) -> None:
    request, _, _, metadata = planned(rig)
    play(rig, request, metadata)
    extent, _ = slot_of(metadata, chunk)
    link = rig.worker.link
    assert link is not None
    assert link.extents.take(Epoch(metadata.loads[0].epoch), extent)
    outcome = rig.run(PROMPT)  # its forward computes every page itself
    assert outcome.offered == 0
    rig.check_nothing_leased()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("fault", ["unmapped", "reused"])
def test_b07_after_the_offer_it_is_an_error(
    rig: EngineRig,
    server: ServerProcess,
    chunk: int,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    request, _, _, metadata = planned(rig)
    extent, slot = slot_of(metadata, chunk)
    link = rig.worker.link
    assert link is not None
    if fault == "unmapped":
        assert link.extents.take(Epoch(metadata.loads[0].epoch), extent)
    else:
        stamp_anew(server, extent, slot)
    with pytest.raises(LoadError):
        play(rig, request, metadata)
    assert "a load failed" in caplog.text
    assert rig.query(FakeRequest(99, PROMPT)) == 0  # nothing is promised any more
    rig.check_nothing_leased()


def test_b07_without_a_server_it_comes_from_the_own_mapping(
    rig: EngineRig, server: ServerProcess
) -> None:
    request, offered, pages, metadata = planned(rig)
    server.kill()
    play(rig, request, metadata)
    rig.check(PROMPT, pages, offered // SIZE)


def stamp_anew(server: ServerProcess, extent: int, slot: int) -> None:
    """The slot carries another generation, as if it had been reused: a server gone mad."""
    offset = RECORDS_OFFSET_BYTES + slot * RECORD_DTYPE.itemsize
    fields = RECORD_DTYPE.fields
    assert fields is not None
    folder = next(server.arena_dir.rglob("*.extent")).parent
    fd = os.open(extent_path(str(folder), extent), os.O_RDWR)
    try:
        os.pwrite(fd, (1 << 40).to_bytes(8, "little"), offset + fields["generation"][1])
    finally:
        os.close(fd)

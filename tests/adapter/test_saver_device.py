"""Saves out of a device through the ring: nothing early, nothing torn, nothing held for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter import ring as ring_module
from adapter.journal import Journal
from adapter.link import Link
from adapter.metadata import ConnectorMetadata
from adapter.pagememory import GroupPages, LayerSlice, PageMemory, PagePart
from adapter.ring import StagingRing
from adapter.saver import Saver
from protocol.device.simulated.faults import Fault
from protocol.layout import PAGE_DTYPE
from protocol.messages import Body, Op, StoreReply
from tests.adapter.gpu import Gpu, simulated
from tests.adapter.linking import joined_link
from tests.adapter.responder import PAGE_BYTES, Responder, until
from tests.adapter.test_saver import ALL, GEO, bind, counted, names, publish

NUM_PAGES = 16


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    kept = len(ring_module._KEPT)
    with simulated(monkeypatch, tmp_path, delay_us=2000) as gpu:
        yield gpu
    del ring_module._KEPT[kept:]


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        server.handlers[Op.COMMIT] = publish
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


class Rig:
    """A saver of pages on a device; forwards that write them are queued on a stream."""

    def __init__(
        self, gpu: Gpu, link: Link, server: Responder, by_layer: bool = False, starts: bool = True
    ) -> None:
        self.address = gpu.malloc(NUM_PAGES * PAGE_BYTES)
        self.pages = gpu.content(self.address, NUM_PAGES * PAGE_BYTES).reshape(NUM_PAGES, -1)
        part = PagePart.on_device(self.address, self.pages.size, PAGE_BYTES, PAGE_BYTES)
        half = PAGE_BYTES // 2
        layers = {at: (LayerSlice(0, at * half, half),) for at in range(2)}
        self.memory = PageMemory(
            (GroupPages((part,), NUM_PAGES),), None, layers=layers, device=gpu.seam
        )
        self.ring = StagingRing(GEO, num_bytes=4 * PAGE_BYTES, device=gpu.seam)
        self.main: Any = gpu.device.create_stream()
        self.journal = Journal(logging.getLogger("kvkeep.test"))
        self.saver = Saver(
            link,
            GEO,
            100,
            self.journal,
            gpu.device.bind,
            self.memory,
            self.ring,
            by_layer=by_layer,
        )
        self.found: list[bytes] = []
        server.handlers[Op.STORE] = self.store
        if starts:
            self.saver.start()

    def forward(self, seed: int, pages: tuple[int, ...] = (3, 4)) -> bytes:
        """Queues work that fills pages; what stands in them then."""
        content = np.random.default_rng(seed).integers(
            0, 256, (len(pages), PAGE_BYTES), dtype=np.uint8
        )

        def write() -> None:
            self.pages[list(pages)] = content

        self.main.enqueue(write)
        return content.tobytes()

    def store(self, body: Any) -> Body:
        """As the server: reads the ring, when the host has handed the pages out again already."""
        self.pages[:] = 0xAA
        slots = np.frombuffer(body.pages, PAGE_DTYPE).tolist()
        self.found.append(b"".join(self.ring.page(0, slot).tobytes() for slot in slots))
        return StoreReply(held=0, copied=len(body.keys) // 16)


def test_what_is_stored_is_what_the_forward_left(gpu: Gpu, link: Link, server: Responder) -> None:
    rig = Rig(gpu, link, server)
    expected: list[bytes] = []
    for key in range(7, 27):
        expected.append(rig.forward(key))
        mark = rig.main.record_event()
        bind(rig.saver, names(key), alive={key: 0})
        assert rig.saver.hold(key, 100 + key, 0, ALL)
        rig.saver.finished([100 + key], mark)
        until(lambda: len(rig.found) == len(expected))
    assert rig.found == expected
    until(lambda: counted(rig.saver, "chunks_saved") == 40)
    assert rig.ring.num_lent == 0
    assert rig.saver.stop(5)


def test_layers_are_copied_as_they_are_computed(gpu: Gpu, link: Link, server: Responder) -> None:
    rig = Rig(gpu, link, server, by_layer=True)
    expected: list[bytes] = []
    for key in range(7, 15):
        content = rig.forward(key)
        bind(rig.saver)
        rig.saver.bound(
            ConnectorMetadata(
                1,
                alive=np.array([key], dtype=np.int64),
                valid_chunks=np.array([0], dtype=np.int32),
                names=(names(key),),
                may_fire=True,
            ),
            None,
        )
        for layer in range(2):
            rig.saver.layer_done(layer, rig.main.record_event())
        rig.saver.launched()
        bind(rig.saver)  # the wave is closed
        expected.append(content)
        until(lambda: counted(rig.saver, "chunks_staged_by_layer") == 2 * len(expected), 20)
        bind(rig.saver, alive={key: 2})
        until(lambda: len(rig.found) == len(expected))
        # The next wave takes its slots at once or never, and half of the ring is not for waves.
        until(lambda: rig.ring.num_lent == 0)
    assert rig.found == expected
    assert rig.saver.stop(5)


def test_a_device_that_fails_drops_saves_and_nothing_else(
    gpu: Gpu, link: Link, server: Responder
) -> None:
    rig = Rig(gpu, link, server)
    gpu.faulty(Fault("run", "cudaErrorIllegalAddress", is_sticky=True))
    for key in (7, 8):
        bind(rig.saver, names(key), alive={key: 0})
        assert rig.saver.hold(key, 100 + key, 2, ALL)
        rig.saver.finished([100 + key], None)
        assert until(rig.saver.take_saved) == [100 + key]  # the host gets its pages back
    assert rig.journal.counters()["stagings_failed"] == 2
    assert server.bodies(Op.STORE) == []
    assert counted(rig.saver, "held_pages") == 0
    assert rig.saver.stop(5)


def test_a_thread_that_cannot_end_is_told_of(gpu: Gpu, link: Link, server: Responder) -> None:
    rig = Rig(gpu, link, server)
    gpu.faulty(Fault("run", "", hang_s=60.0))
    bind(rig.saver, names(), alive={7: 2})
    until(lambda: rig.ring.num_lent)
    assert not rig.saver.stop(0.1)  # the pool is still being read
    gpu.faulty()  # which ends the hang
    assert rig.saver.stop(5)


def test_a_ring_that_comes_later_takes_what_is_saved_from_then_on(
    gpu: Gpu, link: Link, server: Responder
) -> None:
    rig = Rig(gpu, link, server, starts=False)
    saver = Saver(link, GEO, 100, rig.journal, gpu.device.bind, rig.memory)
    saver.use_ring(rig.ring)
    saver.use_ring(StagingRing(GEO, num_bytes=4 * PAGE_BYTES))  # the first one stays
    saver.start()
    content = rig.forward(1, (9, 12))
    bind(saver, names(pages=(9, 12)), alive={7: 2}, mark=rig.main.record_event())
    until(lambda: rig.found)
    assert rig.found == [content]
    assert saver.stop(5)

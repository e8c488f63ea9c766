import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.device.cuda.copies import (
    MAX_PIECE_BYTES,
    Copies,
    Thresholds,
    Way,
    check,
    has_small_pieces,
)
from protocol.device.cuda.locked import Locked
from protocol.device.cuda.order import CudaStream, Order
from protocol.device.interface import Batch, DeviceError, Direction, batch_of
from tests.protocol.device.cuda.recording import Recorder

UUID = bytes(16)
UP = Direction.TO_DEVICE
ADDRESSES = st.integers(0, 60)
PIECES = st.lists(st.tuples(ADDRESSES, ADDRESSES, st.integers(1, 8)), max_size=6)


class Kernel:
    """Ready when it is told so."""

    def __init__(self, is_there: bool) -> None:
        self.is_there = is_there
        self.launched: list[Batch] = []
        self.is_wanted = False

    def is_ready(self) -> bool:
        return self.is_there

    def prepare(self) -> None:
        self.is_wanted = True

    def launch(self, batch: Batch, stream: CudaStream) -> None:
        self.launched.append(batch)


def rig(
    is_there: bool = False, locked: Locked | None = None, has_host_addresses: bool = True
) -> tuple[Copies, Recorder, Kernel]:
    recorder, kernel = Recorder(), Kernel(is_there)
    driver = recorder.as_driver()
    order = Order(driver, UUID, lambda: None)
    copies = Copies(driver, order, kernel, locked or Locked(), has_host_addresses)
    return copies, recorder, kernel


def stream(number: int = 9, is_legacy: bool = False) -> CudaStream:
    return CudaStream(number, UUID, is_legacy, None)


def irregular(num: int, size: int) -> Batch:
    """Apart on both ends, at no fixed distance."""
    gaps = np.arange(num) ** 2
    places = np.arange(num) * (size + 1) + gaps
    return Batch(places, (1 << 40) + places[::-1] * 2, np.full(num, size))


def apart(num: int) -> Batch:
    """At a fixed distance on each end."""
    return batch_of([(i << 20, (1 << 40) + (i << 22), 64) for i in range(num)])


def overlaps(pieces: list[tuple[int, int, int]]) -> bool:
    targets = [set(range(target, target + size)) for target, _, size in pieces]
    sources = [set(range(source, source + size)) for _, source, size in pieces]
    return any(a & b for a, b in itertools.combinations(targets, 2)) or any(
        a & b for a in targets for b in sources
    )


@given(PIECES)
def test_what_overlaps_is_refused_and_nothing_else(pieces: list[tuple[int, int, int]]) -> None:
    if overlaps(pieces):
        with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
            check(batch_of(pieces))
    else:
        check(batch_of(pieces))


def test_columns_must_fit_and_copies_have_bytes() -> None:
    one, two = np.array([1]), np.array([1, 2])
    for bad in (Batch(one, two, one), Batch(two, two * 100, np.array([1, 0]))):
        with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
            check(bad)


def test_small_pieces_are_many_and_small() -> None:
    limits = Thresholds(few=4, kernel_pieces=10, kernel_bytes=100)
    assert has_small_pieces(irregular(10, 100), limits)
    assert not has_small_pieces(irregular(9, 100), limits)
    assert not has_small_pieces(irregular(10, 101), limits)
    wide = Thresholds(kernel_pieces=2, kernel_bytes=MAX_PIECE_BYTES)
    one_long = batch_of([(0, 1 << 40, 1), (10, 1 << 41, MAX_PIECE_BYTES + 1)])
    assert not has_small_pieces(one_long, wide)


@pytest.mark.parametrize(
    ("batch", "is_there", "way"),
    [
        (irregular(4, 4 << 20), True, Way.EACH),
        (irregular(5, 4 << 20), True, Way.BATCH),
        (irregular(500, 4096), True, Way.KERNEL),
        (irregular(500, 4096), False, Way.BATCH),
        (irregular(500, 256 << 10), True, Way.BATCH),
        (irregular(8, 64), True, Way.BATCH),
        (apart(8), True, Way.BATCH),
    ],
)
def test_a_batch_takes_the_best_way_there_is(batch: Batch, is_there: bool, way: Way) -> None:
    copies, recorder, kernel = rig(is_there)
    assert copies.queue(stream(), batch, UP) is way
    expected = {
        Way.EACH: ["copy"] * len(batch.sizes),
        Way.BATCH: ["copy_all"],
        Way.KERNEL: [],
    }
    assert recorder.names() == expected[way]
    assert bool(kernel.launched) is (way is Way.KERNEL)


def test_neighbours_become_one_copy() -> None:
    copies, recorder, _ = rig()
    pages = [((1 << 40) + i * 4096, i * 4096, 4096) for i in range(1000)]
    assert copies.queue(stream(), batch_of(pages), UP) is Way.EACH
    assert recorder.calls == [("copy", 1 << 40, 0, 4096000, 9)]


def test_a_copy_stays_within_one_page_lock() -> None:
    locked = Locked()
    copies, recorder, _ = rig(locked=locked)
    pages = batch_of([((1 << 40) + i * 4096, (1 << 30) + i * 4096, 4096) for i in range(16)])
    locked.add(1 << 30)
    locked.add((1 << 30) + 8 * 4096)  # as two extents that were mapped side by side
    copies.queue(stream(), pages, UP)
    halves = [((1 << 40) + i * 32768, (1 << 30) + i * 32768, 32768) for i in (0, 1)]
    assert recorder.calls == [("copy", *half, 9) for half in halves]
    back = Batch(pages.sources, pages.targets, pages.sizes)
    copies.queue(stream(), back, Direction.TO_HOST)
    assert len(recorder.calls) == 4
    locked.remove((1 << 30) + 8 * 4096)
    copies.queue(stream(), pages, UP)
    assert len(recorder.calls) == 5


def test_no_batch_asks_for_a_kernel() -> None:
    copies, _, kernel = rig()
    assert copies.queue(stream(), irregular(500, 4096), UP) is Way.BATCH
    assert not kernel.is_wanted, "it would be loaded while requests are served"


def test_a_device_without_the_hosts_addresses_gets_single_copies_only() -> None:
    copies, recorder, kernel = rig(is_there=True, has_host_addresses=False)
    for batch in (irregular(500, 4096), irregular(9, 1 << 20), apart(8)):
        assert copies.queue(stream(), batch, UP) is Way.EACH
    assert set(recorder.names()) == {"copy"}
    assert not kernel.launched


def test_nothing_is_nothing() -> None:
    copies, recorder, _ = rig()
    assert copies.queue(stream(), batch_of([]), UP) is None
    assert recorder.calls == []


def test_what_overlaps_is_not_queued() -> None:
    copies, recorder, _ = rig()
    with pytest.raises(DeviceError):
        copies.queue(stream(), batch_of([(0, 100, 8), (4, 200, 8)]), UP)
    assert recorder.calls == []


def test_only_the_batched_call_leaves_the_legacy_stream() -> None:
    copies, recorder, kernel = rig(is_there=True)
    legacy = stream(0, is_legacy=True)
    copies.queue(legacy, irregular(2, 100), UP)
    copies.queue(legacy, irregular(500, 4096), UP)
    assert recorder.names() == ["copy", "copy"]
    assert len(kernel.launched) == 1
    recorder.calls.clear()
    copies.queue(legacy, irregular(500, 256 << 10), UP)
    told = ("record", "wait", "copy_all")
    names = [name for name in recorder.names() if name in told]
    assert names == ["record", "wait", "copy_all", "record", "wait"]
    assert recorder.calls[-1][1] == 0


def test_no_event_covers_a_batch_that_could_not_be_ordered() -> None:
    recorder = Recorder()
    driver = recorder.as_driver()
    order = Order(driver, UUID, lambda: None)
    copies = Copies(driver, order, Kernel(False), Locked())
    legacy, batch = stream(0, is_legacy=True), irregular(9, 1 << 20)
    refused = DeviceError("cudaErrorMemoryAllocation", "waiting")
    recorder.hooks["copy_all"] = lambda: recorder.failures.update(wait=refused)
    with pytest.raises(DeviceError, match="waiting"):
        copies.queue(legacy, batch, UP)
    (beside,) = [call[2] for call in recorder.calls if call[0] == "copy_all"]
    with pytest.raises(DeviceError, match="waiting"):
        order.record(legacy)  # it would be done before the batch is
    own = order.create_stream()
    order.record(own)  # others go on
    recorder.failures.clear()
    recorder.calls.clear()
    order.record(legacy)
    told = [call for call in recorder.calls if call[0] in ("record", "wait")]
    assert [call[0] for call in told] == ["record", "wait", "record"]
    assert (told[0][2], told[1][1], told[2][2]) == (beside, 0, 0)
    recorder.calls.clear()
    order.record(legacy)
    assert "wait" not in recorder.names(), "once is enough"


def test_the_two_directions_do_not_queue_behind_each_other() -> None:
    copies, recorder, _ = rig()
    legacy, batch = stream(0, is_legacy=True), irregular(9, 1 << 20)
    for direction in (UP, Direction.TO_HOST, UP, Direction.TO_HOST):
        copies.queue(legacy, batch, direction)
    up, down, *again = [call[2] for call in recorder.calls if call[0] == "copy_all"]
    assert up != down
    assert again == [up, down]


@pytest.mark.parametrize("code", ["cudaErrorCallRequiresNewerDriver", "cudaErrorNotSupported"])
def test_a_call_that_is_missing_is_tried_once(code: str) -> None:
    copies, recorder, _ = rig()
    recorder.failures["copy_all"] = DeviceError(code, "copy_all")
    for _ in range(2):
        assert copies.queue(stream(), irregular(9, 1 << 20), UP) is Way.EACH
    assert recorder.names() == ["copy_all"] + ["copy"] * 18


def test_a_call_that_fails_is_an_error() -> None:
    copies, recorder, _ = rig()
    recorder.failures["copy_all"] = DeviceError("cudaErrorIllegalAddress", "copy_all", True)
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        copies.queue(stream(), irregular(9, 1 << 20), UP)
    assert "copy" not in recorder.names()


def test_a_page_costs_little_to_queue() -> None:
    """Our own part of 2 us a page: choosing, not the driver. Loose, for busy machines."""
    copies, _, _ = rig()
    batch = irregular(1024, 4 << 20)
    costs: list[Any] = []
    for _ in range(20):
        begin = time.perf_counter()
        copies.queue(stream(), batch, UP)
        costs.append(time.perf_counter() - begin)
    assert min(costs) / 1024 < 2e-6

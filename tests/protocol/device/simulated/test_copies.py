import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.device.interface import DeviceError, Direction, MemoryKind, batch_of
from protocol.device.simulated.copies import PIECE_BYTES, accept, run
from protocol.device.simulated.memory import Memory, Range

DEVICE, HOST, READ_ONLY, FAR = 1000, 2000, 3000, 4000


def memory() -> Memory:
    """100 bytes each of a device, page-locked, page-locked for reading, and of another device."""
    made = Memory()
    made.add(Range(DEVICE, 100, MemoryKind.DEVICE, owner=0))
    made.add(Range(HOST, 100, MemoryKind.HOST))
    made.add(Range(READ_ONLY, 100, MemoryKind.HOST, is_writable=False))
    made.add(Range(FAR, 100, MemoryKind.DEVICE, owner=1))
    return made


TO_DEVICE, TO_HOST = Direction.TO_DEVICE, Direction.TO_HOST


@pytest.mark.parametrize(
    ("direction", "copies", "why"),
    [
        (TO_DEVICE, [(DEVICE, HOST, 8)], ""),
        (TO_DEVICE, [(DEVICE, READ_ONLY, 100)], ""),
        (TO_DEVICE, [(DEVICE + 50, DEVICE, 50)], ""),
        (TO_DEVICE, [(DEVICE, HOST, 8), (DEVICE + 8, HOST, 8)], ""),
        (TO_DEVICE, [], ""),
        (TO_HOST, [(HOST, DEVICE, 100)], ""),
        (TO_HOST, [(READ_ONLY, DEVICE, 8)], "reading only"),
        (TO_DEVICE, [(HOST, DEVICE, 8)], "must be memory of the device"),
        (TO_HOST, [(DEVICE, HOST, 8)], "must be memory of the device"),
        (TO_DEVICE, [(DEVICE, 5000, 8)], "not page-locked"),
        (TO_DEVICE, [(DEVICE, HOST + 96, 8)], "not page-locked"),
        (TO_DEVICE, [(DEVICE + 96, HOST, 8)], "must be memory of the device"),
        (TO_DEVICE, [(DEVICE, HOST, 8), (FAR, HOST, 8)], "must be memory of the device"),
        (TO_DEVICE, [(DEVICE, FAR, 8)], "out of reach"),
        (TO_DEVICE, [(DEVICE, HOST, 0)], "not positive"),
        (TO_DEVICE, [(DEVICE, HOST, 8), (DEVICE + 7, HOST + 8, 8)], "targets overlap"),
        (TO_DEVICE, [(DEVICE + 4, DEVICE, 8)], "a source overlaps a target"),
    ],
)
def test_what_is_refused(
    direction: Direction, copies: list[tuple[int, int, int]], why: str
) -> None:
    def sees(place: Range) -> bool:
        return place.owner == 0

    if not why:
        assert len(accept(batch_of(copies), direction, memory(), sees).sizes) == len(copies)
        return
    with pytest.raises(DeviceError, match=why) as raised:
        accept(batch_of(copies), direction, memory(), sees)
    assert not raised.value.is_sticky


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(1, 9)), max_size=6),
)
def test_overlaps_are_seen_whatever_their_order(copies: list[tuple[int, int, int]]) -> None:
    written: set[int] = set()
    is_clean = True
    for target, _, size in copies:
        is_clean &= written.isdisjoint(range(target, target + size))
        written.update(range(target, target + size))
    for _, source, size in copies:
        is_clean &= written.isdisjoint(range(source, source + size))
    batch = batch_of([(DEVICE + t, DEVICE + s, n) for t, s, n in copies])
    try:
        accept(batch, Direction.TO_DEVICE, memory(), lambda place: True)
    except DeviceError:
        assert not is_clean
    else:
        assert is_clean


def test_the_caller_may_reuse_its_arrays() -> None:
    batch = batch_of([(DEVICE, HOST, 8)])
    accepted = accept(batch, Direction.TO_DEVICE, memory(), lambda place: True)
    batch.targets[:] = 0
    assert accepted.targets.tolist() == [DEVICE]


@pytest.mark.parametrize("num_bytes", [1, PIECE_BYTES, 40 * PIECE_BYTES + 3])
def test_all_bytes_are_moved_in_a_random_order(num_bytes: int) -> None:
    source = np.random.default_rng(3).integers(1, 255, num_bytes, dtype=np.uint8)
    target = np.zeros_like(source)
    known = Memory()
    for array, kind in ((source, MemoryKind.HOST), (target, MemoryKind.DEVICE)):
        known.add(Range(array.ctypes.data, num_bytes, kind))
    batch = batch_of([(target.ctypes.data, source.ctypes.data, num_bytes)])
    begun_first: set[bool] = set()
    for seed in range(8):
        target[:] = 0
        seen: list[bool] = []
        run(batch, known, random.Random(seed), lambda seen=seen: seen.append(target[0] != 0))  # type: ignore[misc]
        assert (target == source).all()
        assert len(seen) == (1 if num_bytes <= PIECE_BYTES else 16)
        begun_first.add(bool(seen[len(seen) // 2]))
    assert begun_first == ({False} if num_bytes <= PIECE_BYTES else {False, True})


def test_memory_that_is_gone_when_the_copy_runs_is_an_illegal_access() -> None:
    source, target = np.ones(8, dtype=np.uint8), np.zeros(8, dtype=np.uint8)
    known = Memory()
    places = [
        Range(a.ctypes.data, 8, kind)
        for a, kind in ((source, MemoryKind.HOST), (target, MemoryKind.DEVICE))
    ]
    for place in places:
        known.add(place)
    batch = batch_of([(target.ctypes.data, source.ctypes.data, 8)])
    accepted = accept(batch, Direction.TO_DEVICE, known, lambda place: True)
    known.remove(places[0])
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress") as raised:
        run(accepted, known, random.Random(0), lambda: None)
    assert raised.value.is_sticky
    assert not target.any()

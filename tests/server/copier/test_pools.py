"""Pools on a device: opened, checked and closed on a thread of their own, in order."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.device.interface import Device
from protocol.device.simulated import driver, faults
from protocol.device.simulated.faults import Fault
from server.copier.pools import Pool, Pools
from server.copier.wake import Wake
from server.copier.wire import Answer, Command, Kind
from tests.server.copier.gpuchild import exporter

MIB = 1 << 20


@pytest.fixture
def handle(gpu_folder: Path) -> Iterator[bytes]:
    with exporter(MIB) as (_, opening):
        yield opening.handle


@pytest.fixture
def pools(device: Device) -> Iterator[Pools]:
    made = Pools(device, Wake())
    yield made
    made.stop()


def collect(pools: Pools, num: int) -> list[Answer]:
    answers: list[Answer] = []
    deadline_s = time.monotonic() + 10
    while len(answers) < num and time.monotonic() < deadline_s:
        select.select([pools._wake], [], [], 0.1)
        pools._wake.clear()
        answers += pools.collect()
    return answers


def opening(number: int, handle: bytes, offset: int = 0, size: int = MIB) -> Command:
    return Command(Kind.OPEN_POOL, number, size_bytes=size, offset_bytes=offset, handle=handle)


def test_a_pool_is_known_between_its_opening_and_its_closing(pools: Pools, handle: bytes) -> None:
    pools.open(opening(1, handle), 5.0)
    pools.open(opening(2, handle, 4096, 8192), 6.0)
    assert pools.oldest_s == 5.0
    assert not [number for number in (1, 2) if pools.find(number)]
    answers = collect(pools, 2)
    assert answers == [Answer(Kind.OPEN_POOL, 1, None), Answer(Kind.OPEN_POOL, 2, None)]
    whole, part = pools.find(1), pools.find(2)
    assert whole is not None
    assert part == Pool(whole.address + 4096, 8192)
    pools.close(Command(Kind.UNMAP_POOL, 1), 7.0)
    assert pools.find(1) is None
    assert collect(pools, 1) == [Answer(Kind.UNMAP_POOL, 1, None)]
    assert pools.find(2) == part
    assert pools.oldest_s is None


def test_a_pool_closed_before_it_was_open_never_becomes_known(pools: Pools, handle: bytes) -> None:
    pools.open(opening(1, handle), 0.0)
    pools.close(Command(Kind.UNMAP_POOL, 1), 0.0)
    known = []
    answers: list[Answer] = []
    while len(answers) < 2:
        answers += collect(pools, 1)
        known.append(pools.find(1))
    assert [answer.kind for answer in answers] == [Kind.OPEN_POOL, Kind.UNMAP_POOL]
    assert not any(known)
    current = driver.current()
    assert current is not None
    assert current.num_opened() == 0


@pytest.mark.parametrize(("offset", "size"), [(1, MIB), (0, MIB + 1), (MIB, 1), (0, 0)])
def test_what_the_allocation_does_not_hold_is_refused_and_closed(
    pools: Pools, handle: bytes, offset: int, size: int
) -> None:
    pools.open(opening(1, handle, offset, size), 0.0)
    [answer] = collect(pools, 1)
    assert answer.error is not None
    assert str(MIB) in answer.error
    assert pools.find(1) is None
    assert pools.failure is None
    current = driver.current()
    assert current is not None
    assert current.num_opened() == 0


def test_a_handle_of_nothing_is_refused(pools: Pools, handle: bytes) -> None:
    for number, wrong in enumerate((bytes(64), handle[:20] + bytes(44))):
        pools.open(opening(number, wrong), 0.0)
        [answer] = collect(pools, 1)
        assert answer.error is not None
        assert "cudaErrorInvalidResourceHandle" in answer.error
    pools.open(opening(9, handle), 0.0)
    assert collect(pools, 1) == [Answer(Kind.OPEN_POOL, 9, None)]


def test_only_a_sticky_error_is_the_devices_end(
    pools: Pools, handle: bytes, gpu_folder: Path
) -> None:
    for is_sticky in (False, True):
        faults.plant(gpu_folder, Fault("open", "cudaErrorUnknown", is_sticky=is_sticky))
        pools.open(opening(1, handle), 0.0)
        [answer] = collect(pools, 1)
        assert answer.error is not None
        assert (pools.failure is not None) == is_sticky


def test_what_cannot_be_closed_ends_the_copier(
    pools: Pools, handle: bytes, gpu_folder: Path
) -> None:
    """Its engine would free memory that is still open here, once told that it is closed."""
    pools.open(opening(1, handle), 0.0)
    assert collect(pools, 1) == [Answer(Kind.OPEN_POOL, 1, None)]
    faults.plant(gpu_folder, Fault("close", "cudaErrorUnknown", times=1))
    pools.close(Command(Kind.UNMAP_POOL, 1), 0.0)
    [answer] = collect(pools, 1)
    assert answer.error is not None
    assert pools.failure is not None


def test_a_driver_that_takes_its_time_holds_up_nobody_else(
    pools: Pools, handle: bytes, gpu_folder: Path
) -> None:
    faults.plant(gpu_folder, Fault("open", "", hang_s=30, times=1))
    begun_s = time.monotonic()
    pools.open(opening(1, handle), begun_s)
    assert pools.collect() == []
    assert time.monotonic() - begun_s < 5
    assert pools.oldest_s == begun_s
    faults.plant(gpu_folder)
    assert collect(pools, 1) == [Answer(Kind.OPEN_POOL, 1, None)]

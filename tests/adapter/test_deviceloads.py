"""Loads queued before the forward: exact, in order, held until done, and loud when they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from adapter.copy import LoadError
from adapter.deviceloads import DeviceLoads, loads_for
from adapter.journal import Journal
from adapter.loader import LOGGER, Loader
from adapter.loads import Loads
from adapter.pagememory import PageMemory
from protocol.device.interface import Device, DeviceError
from protocol.device.simulated.faults import Fault
from tests.adapter.arena import UNTOUCHED
from tests.adapter.devicearena import simulated_driver
from tests.adapter.devicerig import PAGE, WAIT_S, DeviceRig, order, seeds
from tests.adapter.hostlike import geometry

HOOK_S = 1.0
"""Far above what a hook takes on a busy machine, and far below what it would wait for here."""


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceRig]:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        made = DeviceRig(driver)
        yield made
        made.close()


def test_the_kind_of_memory_decides(rig: DeviceRig) -> None:
    for device, kind in ((None, Loads), (cast(Device, rig.device), DeviceLoads)):
        memory = PageMemory((rig.memory,), None, device=device)
        made = loads_for(memory, geometry(page_bytes=PAGE), Journal(LOGGER), Loader(), False)
        assert type(made) is kind


# --- in order ---


@seeds(5)
def test_a_load_comes_after_the_work_before_and_ahead_of_the_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with simulated_driver(tmp_path, monkeypatch, seed=seed) as driver:
        rig = DeviceRig(driver)
        seen: list[bytes] = []

        def look(page: int) -> None:
            seen.append(rig.pool[page].tobytes())

        for turn in range(8):
            page, place = turn % 3, (1 + turn % 2, turn % 4)
            # A forward that still reads and writes the recycled page.
            rig.queue(rig.main, look, page)
            rig.queue(rig.main, lambda page: rig.pool[page].fill(7), page)
            rig.begin(order(f"l{turn}", place, page))
            rig.forward.wait_stream(rig.main)
            rig.queue(rig.forward, look, page)
            rig.main.wait_stream(rig.forward)
            rig.end()
        rig.main.synchronize(WAIT_S)
        wanted = [rig.arena.page(1 + turn % 2, turn % 4, 0).tobytes() for turn in range(8)]
        assert seen[1::2] == wanted
        assert seen[0::2] == [bytes([UNTOUCHED]) * PAGE] * 3 + wanted[:5]
        rig.settle()
        assert sorted(rig.leases.given) == [b"l%d" % turn for turn in range(8)]
        rig.close()


def test_the_hook_waits_for_nothing_and_holds_what_is_read(rig: DeviceRig) -> None:
    hold = rig.hold()
    given = order("a", (1, 1), 5)
    begin_s = time.monotonic()
    rig.begin(given, order("b", (2, 2), 6))
    rig.launch()
    rig.end()
    assert time.monotonic() - begin_s < HOOK_S
    assert (rig.loads.num_flying, rig.arena.users(), rig.leases.given) == (2, 2, [])
    rig.begin(given)  # the metadata comes again
    rig.arena.table.take(rig.arena.epoch, 1)  # the server wants it back, or is gone
    assert rig.loads.num_flying == 2
    assert [e.geometry.extent for e in rig.arena.table.idle_taken()] == []
    hold.let_go()
    rig.settle()  # an idle engine calls no hook
    assert rig.is_filled(5, (1, 1))
    assert rig.is_filled(6, (2, 2))
    assert rig.leases.given == [b"a", b"b"]
    assert rig.arena.users() == 0
    assert [e.geometry.extent for e in rig.arena.table.idle_taken()] == [1]
    assert rig.journal.counters() == {"bytes_loaded": 2 * PAGE, "pages_loaded": 2}


def test_the_executors_thread_may_have_made_no_use_of_the_device_before(rig: DeviceRig) -> None:
    executor = threading.Thread(target=lambda: rig.begin(order("a", (1, 1), 5)))
    executor.start()
    executor.join(WAIT_S)
    rig.main.synchronize(WAIT_S)
    assert rig.is_filled(5, (1, 1))
    rig.settle()
    rig.loads.launched()


def test_hooks_end_loads_as_well(rig: DeviceRig) -> None:
    rig.loader.stop(0)  # nobody else does
    rig.begin(order("a", (1, 1), 5))
    rig.main.synchronize(WAIT_S)
    assert rig.leases.given == []
    rig.loads.launched()
    assert rig.leases.given == [b"a"]
    rig.begin(order("b", (1, 1), 6))
    rig.main.synchronize(WAIT_S)
    assert rig.loads.take_arrived([]) == []
    assert rig.leases.given == [b"a", b"b"]
    rig.begin(order("c", (1, 1), 7))
    rig.main.synchronize(WAIT_S)
    rig.begin()
    assert rig.leases.given == [b"a", b"b", b"c"]


def test_without_a_wanted_page_the_lease_goes_back(rig: DeviceRig) -> None:
    rig.begin(order("a", (77, 9), -1))
    rig.settle()
    assert rig.leases.given == [b"a"]


@pytest.mark.parametrize("has_shown_x", [False, True])
def test_a_forward_that_was_skipped_leaves_no_page_to_be_overwritten_later(
    rig: DeviceRig, has_shown_x: bool
) -> None:
    # The host frees the page and fills it from X alone, not from M (host contract §5).
    if has_shown_x:
        rig.loads.wait_for_layer(0, rig.forward)
    hold = rig.hold()
    rig.begin(order("a", (1, 1), 5))
    if not has_shown_x:
        hold.let_go()
    assert rig.loads.take_arrived([]) == []
    rig.forward.enqueue(lambda: rig.pool[5].fill(3))
    hold.let_go()
    rig.main.synchronize(WAIT_S)
    rig.forward.synchronize(WAIT_S)
    assert (rig.pool[5] == 3).all()
    rig.settle()


# --- failures ---


def check_failed(rig: DeviceRig, words: str) -> None:
    """From now on, in each hook that may raise."""
    for hook in (lambda: rig.loads.take_arrived([]), rig.loads.launched, rig.begin):
        with pytest.raises(LoadError, match=words):
            hook()


@pytest.mark.parametrize("first", ["launched", "take_arrived", "begin"])
def test_a_slot_reused_under_the_copy_is_raised_by_the_first_hook(
    rig: DeviceRig, first: str
) -> None:
    rig.loader.stop(0)
    hold = rig.hold()
    rig.begin(order("a", (1, 1), 5))
    rig.launch()
    mark = rig.loads.guard(rig.main.record_event())
    assert mark is not None
    rig.arena.files[1].set_generation(1, 99)
    assert not mark.query()
    hold.let_go()
    rig.main.synchronize(WAIT_S)
    hooks = {"launched": rig.loads.launched, "begin": rig.begin}
    with pytest.raises(LoadError, match="carries generation 99"):
        hooks.get(first, lambda: rig.loads.take_arrived([]))()
    check_failed(rig, "carries generation 99")
    with pytest.raises(LoadError, match="carries generation 99"):
        mark.query()  # nothing of that forward is saved
    assert rig.leases.given == [b"a"]
    assert rig.arena.users() == 0


def test_a_forward_is_saved_only_once_its_loads_are_known_to_be_good(rig: DeviceRig) -> None:
    rig.loader.stop(0)
    rig.begin(order("a", (1, 1), 5))
    rig.launch()
    mark = rig.loads.guard(rig.main.record_event())
    assert mark is not None
    rig.main.synchronize(WAIT_S)
    assert rig.loads.num_flying == 1
    assert mark.query()
    assert (rig.loads.num_flying, rig.leases.given) == (0, [b"a"])
    assert rig.loads.guard(None) is None


def test_what_is_known_to_be_wrong_is_not_queued(rig: DeviceRig) -> None:
    rig.arena.files[2].set_generation(2, 99)
    for given, words in (
        (order("a", (2, 2), 5), "generation 99"),
        (order("b", (9, 1), 5), "mapped"),
    ):
        with pytest.raises(LoadError, match=words):
            rig.begin(given)
    with pytest.raises(LoadError, match="the reason"):
        rig.begin(order("c", (1, 1), 5), failure="the reason")
    rig.main.synchronize(WAIT_S)
    assert rig.loads.num_flying == rig.arena.users() == 0
    assert rig.leases.given == [b"a", b"b", b"c"]
    rig.arena.check_untouched(rig.memory)
    rig.begin(order("d", (1, 1), 5))  # those were not the device's failures
    rig.settle()
    assert rig.is_filled(5, (1, 1))


def test_an_extent_that_is_not_page_locked_is_refused_by_the_device(rig: DeviceRig) -> None:
    rig.arena.pins.pop(0).close()
    with pytest.raises(LoadError, match="not page-locked"):
        rig.begin(order("a", (1, 1), 5))
    rig.settle()
    assert rig.leases.given == [b"a"]
    assert rig.arena.users() == 0


def test_a_copy_that_cannot_be_queued_fails_its_order_and_those_behind(rig: DeviceRig) -> None:
    hold = rig.hold()
    rig.plant(Fault("copy", "cudaErrorMemoryAllocation", after=1))
    with pytest.raises(LoadError, match="cudaErrorMemoryAllocation"):
        rig.begin(order("a", (1, 0), 0), order("b", (1, 1), 1), order("c", (1, 2), 2))
    assert rig.leases.given == [b"c"]
    assert rig.arena.users() == 2  # of what is on its way, or might be
    hold.let_go()
    rig.settle()
    assert sorted(rig.leases.given) == [b"a", b"b", b"c"]
    assert rig.is_filled(0, (1, 0))
    assert (rig.pool[1:3] == UNTOUCHED).all()


@pytest.mark.parametrize("times", [1, None])
def test_copies_without_an_event_behind_them_stay_held(rig: DeviceRig, times: int | None) -> None:
    rig.plant(Fault("record", "cudaErrorUnknown", times=times))
    with pytest.raises(LoadError, match="cudaErrorUnknown"):
        rig.begin(order("a", (1, 1), 5))
    check_failed(rig, "cudaErrorUnknown")
    if times is None:  # there never was an event: nobody knows when they end
        time.sleep(0.05)  # long enough to go wrong
        assert (rig.arena.users(), rig.leases.given) == (1, [])
    else:  # a second one was to be had
        rig.settle()
        assert (rig.arena.users(), rig.leases.given) == (0, [b"a"])


@pytest.mark.parametrize("is_sticky", [False, True])
def test_a_device_that_fails_while_it_copies_is_raised_and_nothing_is_saved(
    rig: DeviceRig, is_sticky: bool
) -> None:
    hold = rig.hold()
    rig.begin(order("a", (1, 1), 5))
    rig.launch()
    mark = rig.loads.guard(rig.main.record_event())
    assert mark is not None
    rig.plant(Fault("run", "cudaErrorIllegalAddress", is_sticky))
    hold.let_go()
    rig.until(lambda: rig.loads._flights._failure is not None)
    with pytest.raises(DeviceError):
        rig.main.synchronize(WAIT_S)
    check_failed(rig, "cudaErrorIllegalAddress")
    with pytest.raises((LoadError, DeviceError)):
        mark.query()
    if is_sticky:  # a context that is lost reads nothing any more
        rig.settle()
        assert rig.leases.given == [b"a"]
    else:
        assert (rig.arena.users(), rig.leases.given) == (1, [])


def test_a_device_that_hangs_is_an_error_in_time_and_what_it_may_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        rig = DeviceRig(driver, limit_s=0.05)
        check_hang(rig)
        rig.close()


def check_hang(rig: DeviceRig) -> None:
    hold = rig.hold()
    rig.begin(order("a", (1, 1), 5))
    rig.until(lambda: rig.loads._flights._failure is not None)
    check_failed(rig, "was not done by the device within 0.05 s")
    assert (rig.arena.users(), rig.leases.given) == (1, [])
    hold.let_go()
    rig.settle()
    assert (rig.arena.users(), rig.leases.given) == (0, [b"a"])
    check_failed(rig, "was not done")  # a request may have been told already


def test_the_end_waits_a_bounded_time_for_the_device(rig: DeviceRig) -> None:
    hold = rig.hold()
    rig.begin(order("a", (1, 1), 5))
    begin_s = time.monotonic()
    rig.loader.stop(0.1)
    assert 0.1 <= time.monotonic() - begin_s < 1
    assert rig.arena.users() == 1
    hold.let_go()
    rig.loader.stop(WAIT_S)  # the thread went on looking
    assert (rig.arena.users(), rig.leases.given) == (0, [b"a"])


# --- an engine without its own order ---


def test_a_load_that_does_not_wait_for_the_stream_is_caught(
    rig: DeviceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests above: they would notice."""
    own = rig.device.create_stream()
    copy = rig.device.copy
    monkeypatch.setattr(
        rig.device, "copy", lambda stream, batch, way: copy(own, batch, way), raising=True
    )
    hold = rig.hold()
    rig.main.enqueue(lambda: rig.pool[5].fill(7))
    rig.begin(order("a", (1, 1), 5))
    own.synchronize(WAIT_S)
    hold.let_go()
    rig.main.synchronize(WAIT_S)
    assert not rig.is_filled(5, (1, 1))
    assert np.all(rig.pool[5] == 7)

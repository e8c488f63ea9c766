"""One rank's loads: its own shards only, each way of loading, leases given back once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from adapter import loader as loader_module
from adapter import loads as loads_module
from adapter.copy import HeldLoad, LoadError
from adapter.extents import ExtentTable
from adapter.journal import Journal
from adapter.loader import Loader
from adapter.loads import Loads, shards_of
from adapter.metadata import ConnectorMetadata, LoadOrder
from adapter.pagememory import GroupPages, LayerSlice, PageMemory
from adapter.saveentry import Mark
from protocol.errors import ErrorCode
from protocol.ids import LeaseId
from protocol.layout import SLOT_DTYPE
from tests.adapter.arena import EPOCH, Arena, check_untouched, content
from tests.adapter.hostlike import FakeMark, geometry

PAGE = 4096
LAYERS = {layer: (LayerSlice(0, layer * 1024, 1024),) for layer in range(4)}
WAIT_S = 5.0


class Leases:
    """The link's part: extents, and what was given back."""

    def __init__(self, table: ExtentTable) -> None:
        self.extents = table
        self.given: list[bytes] = []

    def release(self, lease: LeaseId) -> None:
        self.given.append(lease)


class MarkedStream:
    """Takes whatever mark it is told to take."""

    def __init__(self, gate: Mark | None = None, error: Exception | None = None) -> None:
        self.gate, self.error = gate, error

    def record_event(self) -> Mark | None:
        if self.error is not None:
            raise self.error
        return self.gate


class Rig:
    """One rank's loads over an arena."""

    def __init__(self, by_layer: bool = False) -> None:
        self.arena = Arena(1, PAGE)
        self.memory: GroupPages = self.arena.memory()
        self.loader = Loader()
        self.leases = Leases(self.arena.table)
        self.gate: Mark | None = FakeMark()
        self.journal = Journal(loader_module.LOGGER)
        memory = PageMemory((self.memory,), None, layers=LAYERS)
        geo = geometry(page_bytes=PAGE)
        self.loads = Loads(memory, geo, self.journal, self.loader, by_layer)

    def begin(self, *orders: LoadOrder, may_fire: bool = False, failure: str = "") -> None:
        metadata = ConnectorMetadata(1, loads=orders, may_fire=may_fire, failure=failure)
        self.loads.begin(metadata, self.leases, MarkedStream(self.gate))

    def forward(self, layers: range = range(4)) -> None:
        for layer in layers:
            self.loads.wait_for_layer(layer, None)
        self.loads.launched()

    def is_filled(self, page: int, place: tuple[int, int]) -> bool:
        return np.array_equal(content(self.memory)[page], self.arena.page(*place, 0))

    def close(self) -> None:
        self.loader.stop(WAIT_S)
        self.arena.close()


def order(lease: str, place: tuple[int, int], page: int, **more: Any) -> LoadOrder:
    extent, slot = place
    row = np.array([(extent, slot, slot + 1)], dtype=SLOT_DTYPE)
    pages = np.array([[[page]]], dtype=np.int32)
    more = {"request_id": 1, **more}
    return LoadOrder(
        key=1, lease=lease.encode(), epoch=EPOCH, slots=row.tobytes(), num_shards=1, pages=pages,
        **more,
    )  # fmt: skip


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def layered() -> Iterator[Rig]:
    made = Rig(by_layer=True)
    yield made
    made.close()


def until(condition: Any) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


# --- shards ---


def test_a_rank_takes_its_own_columns() -> None:
    geo = geometry(windows=(0, 8), rank=1, num_ranks=2)
    memory = PageMemory(tuple(GroupPages.packed(np.zeros(256, np.uint8), 64) for _ in "ab"), None)
    slots = np.zeros((2, 4), dtype=SLOT_DTYPE)
    slots["slot"] = np.arange(8).reshape(2, 4)
    pages = np.arange(4, dtype=np.int32).reshape(2, 2, 1)
    given = LoadOrder(1, 1, b"l", EPOCH, slots.tobytes(), 4, pages)
    first, second = shards_of(given, geo, memory)
    assert first.slots["slot"].tolist() == [1, 5]
    assert second.slots["slot"].tolist() == [3, 7]
    assert (first.pages.tolist(), second.pages.tolist()) == ([[0], [1]], [[2], [3]])
    assert (first.group, second.group) == (0, 1)


def test_an_order_for_other_groups_is_refused(rig: Rig) -> None:
    pages = np.zeros((2, 1, 1), dtype=np.int32)
    with pytest.raises(LoadError) as caught:
        rig.begin(LoadOrder(1, 1, b"l", EPOCH, bytes(16), 1, pages))
    assert caught.value.code == ErrorCode.COUNT_MISMATCH
    assert rig.leases.given == [b"l"]


# --- whole, before the forward ---


def test_whole_loads_are_complete_on_return_and_not_repeated(rig: Rig) -> None:
    given = order("a", (1, 1), 5)
    rig.begin(given, order("b", (2, 2), 6))
    assert rig.is_filled(5, (1, 1))
    assert rig.is_filled(6, (2, 2))
    assert rig.leases.given == [b"a", b"b"]
    rig.memory.parts[0].host[:] = 7
    rig.begin(given)
    assert (rig.memory.parts[0].host == 7).all()
    assert rig.leases.given == [b"a", b"b"]
    assert rig.journal.counters() == {"bytes_loaded": 2 * PAGE, "pages_loaded": 2}


def test_a_failure_gives_every_lease_back_and_raises(rig: Rig) -> None:
    with pytest.raises(LoadError, match="not mapped"):
        rig.begin(order("a", (9, 1), 5), order("b", (2, 2), 6))
    assert sorted(rig.leases.given) == [b"a", b"b"]
    with pytest.raises(LoadError, match="the reason"):
        rig.begin(order("c", (1, 1), 5), failure="the reason")
    assert rig.leases.given[-1] == b"c"
    check_untouched(rig.memory)
    assert rig.arena.users() == 0


def test_what_was_reused_while_it_was_copied_fails_the_load(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = HeldLoad.copy

    def copy_and_reuse(load: HeldLoad, *more: Any) -> None:
        copy(load, *more)
        rig.arena.files[1].set_generation(1, 99)

    monkeypatch.setattr(HeldLoad, "copy", copy_and_reuse)
    with pytest.raises(LoadError, match="reused"):
        rig.begin(order("a", (1, 1), 5))
    assert rig.leases.given == [b"a"]


def test_few_of_the_loads_that_were_begun_are_remembered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads_module, "_MAX_BEGUN", 2)
    for at in range(4):
        rig.begin(order(f"{at}", (1, at % 2), 5))
    assert list(rig.loads._begun) == [b"2", b"3"]


def test_a_stream_that_takes_no_mark_fails_the_load(rig: Rig) -> None:
    broken = MarkedStream(error=RuntimeError("no event is to be had"))
    with pytest.raises(LoadError, match="no event"):
        rig.loads.begin(ConnectorMetadata(1, loads=(order("a", (1, 1), 5),)), rig.leases, broken)
    assert rig.leases.given == [b"a"]
    check_untouched(rig.memory)


class ForwardAhead:
    """A mark behind a forward that is still under way, and writes into the pages at its end."""

    def __init__(self, memory: GroupPages, num_looks: int = 3) -> None:
        self._memory, self._left = memory, num_looks

    def query(self) -> bool:
        self._left -= 1
        if self._left == 0:
            self._memory.parts[0].host[:] = 7
        return self._left <= 0


def test_pages_are_filled_behind_the_work_that_still_uses_them(rig: Rig) -> None:
    ahead = rig.gate = ForwardAhead(rig.memory)  # host contract rule 5
    rig.begin(order("a", (1, 1), 5))
    while not ahead.query():  # what is left of the forward, should nobody have waited for it
        pass
    assert rig.is_filled(5, (1, 1))


def test_without_orders_the_stream_is_not_asked(rig: Rig) -> None:
    rig.loads.begin(ConnectorMetadata(1), rig.leases, MarkedStream(error=RuntimeError("asked")))


def test_a_stream_without_marks_has_nothing_to_wait_for(rig: Rig) -> None:
    rig.loads.begin(ConnectorMetadata(1, loads=(order("a", (1, 1), 5),)), rig.leases, object())
    assert rig.is_filled(5, (1, 1))


def test_a_mark_behind_a_forward_is_good_as_it_is(rig: Rig) -> None:
    mark = FakeMark()
    assert rig.loads.guard(mark) is mark
    assert rig.loads.guard(None) is None


# --- in the background ---


def test_a_parked_request_arrives_once_its_pages_are_filled(rig: Rig) -> None:
    gate = rig.gate = FakeMark(is_done=False)
    given = order("a", (1, 1), 5, is_async=True, request_id=7)
    rig.begin(given)
    rig.begin(given)  # the metadata comes again
    assert rig.loads.take_arrived([7, 8]) == [8]  # nothing was ordered for 8
    assert rig.loads.num_waiting == 1
    check_untouched(rig.memory)
    assert rig.leases.given == []
    gate.is_done = True
    until(lambda: rig.loads.num_waiting == 0)
    assert rig.is_filled(5, (1, 1))
    assert rig.leases.given == [b"a"]
    assert rig.loads.take_arrived([]) == [7]
    assert rig.loads.take_arrived([]) == []


def test_both_kinds_in_one_iteration(rig: Rig) -> None:
    rig.begin(order("a", (1, 1), 5, is_async=True, request_id=7), order("b", (2, 2), 6))
    assert rig.is_filled(6, (2, 2))
    until(lambda: rig.loads.num_waiting == 0)
    assert rig.loads.take_arrived([7]) == [7]
    assert rig.is_filled(5, (1, 1))


def test_a_parked_load_that_fails_is_raised_from_then_on(rig: Rig) -> None:
    rig.arena.files[1].set_generation(1, 99)
    rig.begin(order("a", (1, 1), 5, is_async=True, request_id=7))
    until(lambda: rig.loads.num_waiting == 0)
    with pytest.raises(LoadError, match="reused"):
        rig.loads.take_arrived([7])
    with pytest.raises(LoadError, match="reused"):
        rig.begin()
    assert rig.leases.given == [b"a"]


def test_a_parked_load_that_cannot_begin_raises_at_once_and_later(rig: Rig) -> None:
    for _ in range(2):
        with pytest.raises(LoadError, match="not mapped"):
            rig.begin(order("a", (9, 1), 5, is_async=True, request_id=7))
    assert rig.leases.given == [b"a"]
    with pytest.raises(LoadError, match="not mapped"):
        rig.loads.take_arrived([7])


def test_without_room_for_it_a_parked_load_takes_the_hooks_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_MAX_JOBS", 0)
    rig.begin(order("a", (1, 1), 5, is_async=True, request_id=7))
    assert rig.is_filled(5, (1, 1))
    assert rig.loads.take_arrived([7]) == [7]
    rig.arena.files[2].set_generation(2, 99)
    with pytest.raises(LoadError, match="reused"):
        rig.begin(order("b", (2, 2), 6, is_async=True, request_id=8))


# --- by layer ---


def test_without_room_for_it_a_batch_is_loaded_whole_and_lets_go_of_its_extents(
    layered: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.begin(may_fire=True)
    layered.forward()
    monkeypatch.setattr(loader_module, "_MAX_JOBS", 0)
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    assert layered.is_filled(1, (1, 0))
    assert layered.leases.given == [b"a"]
    assert layered.arena.users() == 0


def test_the_first_loads_are_whole_until_hooks_were_seen(layered: Rig) -> None:
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    assert layered.is_filled(1, (1, 0))
    layered.forward()
    layered.gate = FakeMark(is_done=False)
    layered.begin(order("b", (1, 1), 2), may_fire=True)
    assert not layered.is_filled(2, (1, 1))  # it goes on beside the forward
    layered.gate.is_done = True
    layered.forward()
    assert layered.is_filled(2, (1, 1))
    assert layered.journal.counters()["layerwise_batches"] == 1
    until(lambda: layered.leases.given == [b"a", b"b"])


def test_a_batch_without_hooks_to_expect_is_loaded_whole(layered: Rig) -> None:
    layered.begin(may_fire=True)
    layered.forward()
    layered.begin(order("a", (1, 0), 1), may_fire=False)
    assert layered.is_filled(1, (1, 0))
    layered.forward(range(0))
    layered.begin(order("b", (1, 1), 2), may_fire=True)
    layered.forward()
    assert layered.journal.counters()["layerwise_batches"] == 1


@pytest.mark.parametrize("num_asked", [0, 3])
def test_a_forward_that_did_not_ask_is_never_served(layered: Rig, num_asked: int) -> None:
    layered.begin(may_fire=True)
    layered.forward()
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    for layer in range(num_asked):
        layered.loads.wait_for_layer(layer, None)
    until(lambda: layered.leases.given == [b"a"])  # there by now, but that was luck
    with pytest.raises(LoadError, match="without asking"):
        layered.loads.check_hooks()  # from the forward callable
    with pytest.raises(LoadError, match="without asking"):
        layered.loads.launched()
    layered.begin(order("b", (1, 1), 2), may_fire=True)
    assert layered.is_filled(2, (1, 1))  # whole from now on


def test_hooks_that_are_missing_without_a_load_are_said_and_remembered(
    layered: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    layered.begin(may_fire=True)
    layered.forward()
    layered.begin(may_fire=True)
    layered.forward(range(2))
    assert "awaited whole" in caplog.text
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    assert layered.is_filled(1, (1, 0))


def test_a_skipped_forward_leaves_no_load_open(layered: Rig) -> None:
    layered.begin(may_fire=True)
    layered.forward()
    gate = layered.gate = FakeMark(is_done=False)
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    threading.Timer(0.02, lambda: setattr(gate, "is_done", True)).start()
    layered.begin(may_fire=False)  # the request comes again, its order does not
    assert layered.is_filled(1, (1, 0))


def test_a_forward_that_broke_off_leaves_no_load_open(layered: Rig) -> None:
    # Its requests' pages go back, and the next iteration's allocations may copy into them before
    # ``start_load_kv`` comes.
    layered.begin(may_fire=True)
    layered.forward()
    gate = layered.gate = FakeMark(is_done=False)
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    threading.Timer(0.02, lambda: setattr(gate, "is_done", True)).start()
    assert layered.loads.take_arrived([]) == []
    assert layered.is_filled(1, (1, 0))


def test_a_layer_that_fails_is_raised_by_its_hook_and_at_the_next_start(layered: Rig) -> None:
    layered.begin(may_fire=True)
    layered.forward()
    layered.arena.files[1].set_generation(0, 99)
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    with pytest.raises(LoadError, match="reused"):
        layered.loads.wait_for_layer(0, None)
    with pytest.raises(LoadError, match="reused"):
        layered.begin(order("b", (1, 1), 2))
    until(lambda: sorted(layered.leases.given) == [b"a", b"b"])


def test_without_the_mode_layer_hooks_mean_nothing(rig: Rig) -> None:
    for _ in range(2):
        rig.begin(order("a", (1, 0), 1), may_fire=True)
        rig.forward(range(0))
    rig.loads.check_hooks()
    assert "layerwise_batches" not in rig.journal.counters()

"""Layer by layer: what hooks must have shown, what a forward waits for, and what it never sees."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.copy import HeldLoad, LoadError, held_load
from adapter.layerloads import STEP_BYTES, HookRecord, LayerLoad
from adapter.pagememory import GroupPages, LayerSlice
from protocol.errors import ErrorCode
from tests.adapter.arena import EPOCH, UNTOUCHED, Arena, content
from tests.adapter.hostlike import FakeMark

LAYERS = {layer: (LayerSlice(0, layer * 1024, 1024),) for layer in (3, 1, 2, 0)}
WAIT_S = 5.0


# --- the record of hooks ---


def forward(record: HookRecord, is_expected: bool, layers: range) -> bool:
    record.begin(is_expected)
    for layer in layers:
        record.saw(layer)
    return record.launched()


def test_trust_needs_a_forward_that_asked_for_every_layer() -> None:
    record = HookRecord([0, 1, 2])
    assert not record.is_trusted
    assert not forward(record, False, range(0))  # a replayed graph proves nothing
    assert not forward(record, False, range(3))
    assert not record.is_trusted
    assert not forward(record, True, range(4))  # one of them has nothing in the pool
    assert record.is_trusted


def test_one_forward_that_did_not_ask_ends_trust_for_good() -> None:
    record = HookRecord([0, 1, 2])
    forward(record, True, range(3))
    assert forward(record, True, range(2)) is True
    assert forward(record, True, range(2)) is False  # said once
    forward(record, True, range(3))
    assert not record.is_trusted


def test_a_skipped_forward_proves_nothing() -> None:
    record = HookRecord([0, 1])
    record.begin(True)
    record.begin(True)
    record.saw(0)
    record.begin(False)
    assert record.launched() is False
    assert record.launched() is False
    assert not forward(record, True, range(2))
    assert record.is_trusted


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans()), max_size=12))
def test_the_record_against_a_restatement(forwards: list[tuple[bool, int, bool]]) -> None:
    record = HookRecord(range(3))
    outcomes: list[bool] = []
    for is_expected, num_asked, is_launched in forwards:
        assert record.is_trusted == (True in outcomes and False not in outcomes)
        record.begin(is_expected)
        for layer in range(num_asked):
            record.saw(layer)
        assert record.missing == 3 - num_asked
        if is_launched:
            record.launched()
            if is_expected:
                outcomes.append(num_asked == 3)


# --- the loads of one batch ---


class Steps:
    """Lets a load copy one run of bytes at a time."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.is_stopped = False

    def __call__(self) -> bool:
        self.go.acquire(timeout=WAIT_S)
        return self.is_stopped


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1, 4096)
    yield arena
    arena.close()


class Batch:
    """Two loads of one page each, into pages 3 and 8 of one memory."""

    def __init__(self, arena: Arena, gate: FakeMark | None = None, step_bytes: int = 0) -> None:
        self.memory: GroupPages = arena.memory()
        self.told: list[LoadError | None] = []
        self.users_when_told = -1
        self.arena = arena
        shards = [
            arena.shard(self.memory, [place], [page]) for place, page in (((1, 2), 3), ((2, 0), 8))
        ]
        loads: list[HeldLoad] = []
        self.load = LayerLoad(loads, LAYERS, gate or FakeMark(), self._done, step_bytes)
        holding = self.load.holding
        loads += [holding.enter_context(held_load(arena.table, EPOCH, [shard])) for shard in shards]

    def _done(self, failure: LoadError | None) -> None:
        self.users_when_told = self.arena.users()
        self.told.append(failure)

    def start(self, steps: Steps) -> threading.Thread:
        thread = threading.Thread(target=self.load.run, args=(steps,), daemon=True)
        thread.start()
        return thread


def wanted(arena: Arena, num_layers: int) -> np.ndarray:
    pages = np.full((2, 4096), UNTOUCHED, dtype=np.uint8)
    pages[0, : num_layers * 1024] = arena.page(1, 2, 0)[: num_layers * 1024]
    pages[1, : num_layers * 1024] = arena.page(2, 0, 0)[: num_layers * 1024]
    return pages


def test_each_layer_of_all_loads_comes_before_the_next_layer(arena: Arena) -> None:
    batch, steps = Batch(arena), Steps()
    thread = batch.start(steps)
    for layer in range(4):
        with pytest.raises(LoadError) as caught:
            batch.load.wait(layer, limit_s=0.01)
        assert caught.value.code == ErrorCode.DEADLINE_EXCEEDED
        steps.go.release(2)  # one run for each load
        batch.load.wait(layer, limit_s=WAIT_S)
        assert np.array_equal(content(batch.memory)[[3, 8]], wanted(arena, layer + 1))
        if layer < 3:
            with pytest.raises(LoadError):
                batch.load.wait_all(limit_s=0.01)
    batch.load.wait_all(WAIT_S)
    thread.join(WAIT_S)
    assert batch.told == [None]
    assert batch.users_when_told == 0


@pytest.mark.parametrize(
    ("step_bytes", "steps_of_layers"),
    [
        (2048, [[0], [1], [2], [3]]),  # what a layer of both loads has
        (2049, [[0], [1, 2], [3]]),
        (STEP_BYTES, [[0], [1, 2, 3]]),
    ],
)
def test_short_layers_count_as_filled_together_but_the_first(
    arena: Arena, step_bytes: int, steps_of_layers: list[list[int]]
) -> None:
    batch, steps = Batch(arena, step_bytes=step_bytes), Steps()
    thread = batch.start(steps)
    for layers in steps_of_layers:
        steps.go.release(2 * len(layers) - 1)
        for layer in layers:
            with pytest.raises(LoadError) as caught:
                batch.load.wait(layer, limit_s=0.01)
            assert caught.value.code == ErrorCode.DEADLINE_EXCEEDED
        steps.go.release(1)
        for layer in layers:
            batch.load.wait(layer, limit_s=WAIT_S)
        assert np.array_equal(content(batch.memory)[[3, 8]], wanted(arena, layers[-1] + 1))
    thread.join(WAIT_S)
    assert batch.told == [None]


def test_layers_without_anything_in_the_pool_are_not_waited_for(arena: Arena) -> None:
    Batch(arena).load.wait(99, limit_s=0)


def test_a_slot_that_was_reused_fails_the_layer_before_it_counts_as_filled(arena: Arena) -> None:
    batch, steps = Batch(arena), Steps()
    thread = batch.start(steps)
    steps.go.release(2)
    batch.load.wait(0, limit_s=WAIT_S)
    arena.files[2].set_generation(0, 9)
    steps.go.release(9)
    with pytest.raises(LoadError) as caught:
        batch.load.wait(1, limit_s=WAIT_S)
    assert caught.value.code == ErrorCode.COPY_FAILED
    with pytest.raises(LoadError, match="reused"):
        batch.load.wait_all(WAIT_S)
    thread.join(WAIT_S)
    (failure,) = batch.told
    assert failure is not None
    assert batch.users_when_told == 0
    batch.load.wait(0, limit_s=WAIT_S)  # what was filled stays filled


def test_the_first_byte_waits_for_the_stream(arena: Arena) -> None:
    gate = FakeMark(is_done=False)
    batch = Batch(arena, gate)
    thread = threading.Thread(target=batch.load.run, args=(lambda: False,), daemon=True)
    thread.start()
    time.sleep(0.02)  # long enough to go wrong
    assert (content(batch.memory) == UNTOUCHED).all()
    gate.is_done = True
    batch.load.wait_all(WAIT_S)
    assert np.array_equal(content(batch.memory)[[3, 8]], wanted(arena, 4))
    thread.join(WAIT_S)


def test_a_stopped_load_fails_whoever_waits(arena: Arena) -> None:
    batch, steps = Batch(arena), Steps()
    steps.is_stopped = True
    thread = batch.start(steps)
    steps.go.release(1)
    with pytest.raises(LoadError, match="ends"):
        batch.load.wait(0, limit_s=WAIT_S)
    thread.join(WAIT_S)

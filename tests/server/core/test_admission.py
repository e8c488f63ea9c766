"""Slices: turns, sleeping, waking, failing."""

from __future__ import annotations

import gc

import pytest

from protocol.errors import ErrorCode, RequestError
from server.core.admission import MORE, WAIT, Lanes, Steps, Task
from server.core.outbox import Ticket
from server.core.stores import StorePlan
from tests.server.core.world import World, chain, config, namespace


def never(error: Exception) -> None:
    raise AssertionError(error)


def fresh() -> tuple[Lanes, list[str]]:
    return Lanes(), []


def work(log: list[str], name: str, count: int) -> Steps:
    for number in range(count):
        log.append(f"{name}{number}")
        yield MORE


def test_lanes_take_turns_and_tasks_of_a_lane_keep_their_order() -> None:
    lanes, log = fresh()
    lanes.start("a", work(log, "a", 3), never)
    assert log == ["a0"]
    lanes.start("a", work(log, "A", 1), never)
    lanes.start("b", work(log, "b", 2), never)
    while lanes.step():
        pass
    assert log == ["a0", "a1", "b0", "a2", "b1", "A0"]
    assert lanes.is_idle


def test_a_sleeping_task_runs_only_after_it_is_woken() -> None:
    lanes, log = fresh()

    def sleeper() -> Steps:
        log.append("before")
        yield WAIT
        log.append("after")

    task = lanes.start("a", sleeper(), never)
    assert not lanes.step()
    lanes.wake(task)
    lanes.wake(task)
    while lanes.step():
        pass
    assert log == ["before", "after"]
    lanes.wake(task)
    assert not lanes.step()


def test_a_failing_task_ends_alone() -> None:
    lanes, log = fresh()
    errors: list[Exception] = []

    def broken(error: Exception) -> Steps:
        yield MORE
        raise error

    refusal = RequestError(ErrorCode.BUSY, "busy")
    lanes.start("a", broken(refusal), errors.append)
    lanes.start("b", broken(KeyError("bug")), errors.append)
    lanes.start("c", work(log, "c", 3), never)
    while lanes.step():
        pass
    assert errors[0] is refusal
    assert isinstance(errors[1], KeyError)
    assert log == ["c0", "c1", "c2"]


def test_work_started_by_work_waits_for_its_turn() -> None:
    lanes, log = fresh()

    def outer() -> Steps:
        lanes.start("b", work(log, "inner", 1), never)
        log.append("outer")
        yield MORE

    lanes.start("a", outer(), never)
    assert log == ["outer"]
    while lanes.step():
        pass
    assert log == ["outer", "inner0"]


def test_a_task_that_wakes_itself_is_queued_once() -> None:
    lanes, log = fresh()

    def steps() -> Steps:
        log.append("one")
        lanes.wake(task)
        yield WAIT
        log.append("two")

    def idle() -> Steps:
        yield MORE

    lanes.start("x", idle(), never)
    task = lanes.start("a", steps(), never)
    for _ in range(20):
        lanes.step()
    assert log == ["one", "two"]


@pytest.mark.parametrize("num_lanes", [1, 5])
def test_a_slice_is_one_step(num_lanes: int) -> None:
    lanes, log = fresh()
    for lane in range(num_lanes):
        lanes.start(lane, work(log, str(lane), 4), never)
    before = len(log)
    lanes.step()
    assert len(log) == before + 1


def test_a_save_that_has_ended_leaves_no_ring_behind() -> None:
    """A ring of a plan of thousands of keys would stay until the garbage collector comes."""
    world = World(config(), check=False)
    engine = world.engine()
    engine.register(namespace())
    engine.save(chain("x", 6))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for name in "yzw":
            engine.save(chain(name, 6))
            engine.save(chain(name, 6))  # held already
        gc.collect()
        found = [type(one) for one in gc.garbage if isinstance(one, (StorePlan, Task, Ticket))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == []

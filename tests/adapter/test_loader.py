"""The loader: gates, jobs in order on one thread, a bounded end, and who is told what when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter import loader as module
from adapter.copy import LoadError, held_load
from adapter.loader import Arrivals, Loader, WholeLoad, as_load_error, pass_gate
from protocol.errors import ErrorCode
from tests.adapter.arena import EPOCH, Arena, check_untouched, content
from tests.adapter.hostlike import FakeMark
from tests.adapter.responder import PAGE_BYTES

WAIT_S = 5.0


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1, PAGE_BYTES)
    yield arena
    arena.close()


@pytest.fixture
def loader() -> Iterator[Loader]:
    made = Loader()
    yield made
    made.stop(WAIT_S)


class Step:
    """A job that notes where it ran, and may be kept from ending."""

    def __init__(self, log: list[object], is_open: bool = True) -> None:
        self.log, self.go = log, threading.Event()
        self.began, self.ended = threading.Event(), threading.Event()
        if is_open:
            self.go.set()

    def run(self, is_stopped: Callable[[], bool]) -> None:
        self.began.set()
        self.go.wait(WAIT_S)
        self.log.append((self, threading.current_thread().name, is_stopped()))
        self.ended.set()


# --- gates ---


def test_a_gate_that_was_passed_or_is_none_does_not_wait() -> None:
    pass_gate(None)
    pass_gate(FakeMark())


def test_a_gate_is_waited_for() -> None:
    mark = FakeMark(is_done=False)
    timer = threading.Timer(0.02, lambda: setattr(mark, "is_done", True))
    timer.start()
    pass_gate(mark)
    assert mark.is_done


@pytest.mark.parametrize(
    ("mark", "limit_s", "is_stopped", "code"),
    [
        (FakeMark(error=RuntimeError("lost")), 9.0, False, ErrorCode.COPY_FAILED),
        (FakeMark(is_done=False), 0.01, False, ErrorCode.DEADLINE_EXCEEDED),
        (FakeMark(is_done=False), 9.0, True, ErrorCode.UNAVAILABLE),
    ],
)
def test_a_gate_that_is_not_passed_fails_the_load(
    mark: FakeMark, limit_s: float, is_stopped: bool, code: ErrorCode
) -> None:
    begin_s = time.monotonic()
    with pytest.raises(LoadError) as caught:
        pass_gate(mark, lambda: is_stopped, limit_s)
    assert caught.value.code == code
    assert time.monotonic() - begin_s < 2


# --- the thread ---


def test_jobs_run_in_order_on_one_thread_of_the_engines_device() -> None:
    entered: list[str] = []
    loader = Loader(lambda: entered.append(threading.current_thread().name))
    assert not entered
    log: list[object] = []
    steps = [Step(log) for _ in range(20)]
    for step in steps:
        assert loader.submit(step)
    assert steps[-1].ended.wait(WAIT_S)
    assert log == [(step, "kvkeep-loader", False) for step in steps]
    assert entered == ["kvkeep-loader"]
    loader.stop(WAIT_S)


def test_a_device_that_cannot_be_entered_does_not_end_the_thread() -> None:
    def broken() -> None:
        raise RuntimeError("no such device")

    loader = Loader(broken)
    step = Step([])
    assert loader.submit(step)
    assert step.ended.wait(WAIT_S)
    loader.stop(WAIT_S)


def test_a_job_that_breaks_its_word_does_not_end_the_thread(loader: Loader) -> None:
    class Broken:
        def run(self, is_stopped: Callable[[], bool]) -> None:
            raise RuntimeError("it said it would not")

    step = Step([])
    assert loader.submit(Broken())
    assert loader.submit(step)
    assert step.ended.wait(WAIT_S)


def test_a_full_queue_takes_nothing_in(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_JOBS", 2)
    log: list[object] = []
    first = Step(log, is_open=False)
    assert loader.submit(first)
    assert first.began.wait(WAIT_S)
    assert [loader.submit(Step(log)) for _ in range(3)] == [True, True, False]
    first.go.set()


def test_stopping_tells_what_is_left_and_is_bounded(loader: Loader) -> None:
    log: list[object] = []
    first, second = Step(log, is_open=False), Step(log)
    loader.submit(first)
    loader.submit(second)
    begin_s = time.monotonic()
    loader.stop(0.05)
    assert time.monotonic() - begin_s < 1
    assert not loader.submit(Step(log))
    first.go.set()
    loader.stop(WAIT_S)
    assert [(entry[0], entry[2]) for entry in log] == [(first, True), (second, True)]  # type: ignore[index]
    Loader().stop(0)  # one that never ran


# --- whole loads ---


def whole(arena: Arena, gate: FakeMark, told: list[LoadError | None]) -> WholeLoad:
    shard = arena.shard(arena.memory(), [(1, 0), (2, 1)], [3, 4])
    holding = ExitStack()
    load = holding.enter_context(held_load(arena.table, EPOCH, [shard]))

    def done(failure: LoadError | None) -> None:
        assert arena.users() == 0
        told.append(failure)

    job = WholeLoad(load, holding, gate, done)
    job.memory = shard.memory  # type: ignore[attr-defined]
    return job


def test_a_load_waits_for_the_stream_and_holds_its_extents_meanwhile(
    arena: Arena, loader: Loader
) -> None:
    told: list[LoadError | None] = []
    gate = FakeMark(is_done=False)
    job = whole(arena, gate, told)
    assert loader.submit(job)
    time.sleep(0.02)  # long enough to go wrong
    assert arena.users() == 2
    check_untouched(job.memory)  # type: ignore[attr-defined]
    gate.is_done = True
    end_s = time.monotonic() + WAIT_S
    while not told and time.monotonic() < end_s:
        time.sleep(0.001)
    assert told == [None]
    pages = content(job.memory)  # type: ignore[attr-defined]
    assert np.array_equal(pages[3], arena.page(1, 0, 0))
    assert np.array_equal(pages[4], arena.page(2, 1, 0))


def test_whatever_breaks_a_load_is_told(arena: Arena) -> None:
    told: list[LoadError | None] = []
    job = whole(arena, FakeMark(), told)
    arena.files[2].set_generation(1, 9)
    job.run(lambda: False)
    job = whole(arena, FakeMark(), told)
    job.load = None  # type: ignore[assignment]
    job.run(lambda: False)
    job = whole(arena, FakeMark(is_done=False), told)
    job.run(lambda: True)
    codes = [failure and failure.code for failure in told]
    assert codes == [ErrorCode.COPY_FAILED, ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE]


def test_load_errors_stay_what_they_are() -> None:
    error = LoadError(ErrorCode.COPY_FAILED, "x")
    assert as_load_error(error) is error
    assert "ZeroDivisionError" in str(as_load_error(ZeroDivisionError()))


# --- arrivals ---

OPS = st.lists(
    st.tuples(st.sampled_from(["begin", "end", "announce", "take"]), st.integers(0, 3)),
    max_size=60,
)


@given(OPS)
def test_an_id_arrives_once_when_announced_and_filled(ops: list[tuple[str, int]]) -> None:
    arrivals = Arrivals()
    running = dict.fromkeys(range(4), 0)
    waiting: set[int] = set()
    for what, number in [*ops, ("take", 0)]:
        if what == "begin":
            arrivals.begin(number)
            running[number] += 1
        elif what == "end" and running[number]:
            arrivals.end(number, None)
            running[number] -= 1
        elif what == "announce" and number not in waiting:
            waiting.add(number)
            arrived = arrivals.take([number])
            assert set(arrived) == {n for n in waiting if not running[n]}
            waiting -= set(arrived)
        elif what == "take":
            arrived = arrivals.take([])
            assert sorted(arrived) == sorted(n for n in waiting if not running[n])
            waiting -= set(arrived)
        assert arrivals.num_running == sum(running.values())


def test_an_announced_id_without_a_load_has_arrived() -> None:
    assert Arrivals().take([7, 8]) == [7, 8]


def test_a_failed_load_is_never_forgotten() -> None:
    arrivals = Arrivals()
    arrivals.begin(1)
    arrivals.begin(2)
    arrivals.end(1, LoadError(ErrorCode.COPY_FAILED, "the reason", slot=3))
    arrivals.end(2, None)
    for _ in range(2):
        with pytest.raises(LoadError, match="the reason") as caught:
            arrivals.take([1, 2])
        assert caught.value.detail == {"slot": 3}
        with pytest.raises(LoadError, match="the reason"):
            arrivals.check()


def test_a_load_that_fails_while_its_id_is_announced_has_not_arrived() -> None:
    arrivals = Arrivals()
    arrivals.begin(1)

    def announced() -> Iterator[int]:
        arrivals.end(1, LoadError(ErrorCode.COPY_FAILED, "just now"))
        yield 1

    with pytest.raises(LoadError, match="just now"):
        arrivals.take(announced())

"""Long calls are kept with their times, also those that have not ended; short ones are counted."""

from __future__ import annotations

import threading
import time

import pytest

from tests.chaos.watch import LONG_NS, Watch, WatchedHooks, watched

LONG_S = LONG_NS / 1e9 * 1.5


def test_a_long_call_is_kept_and_a_short_one_is_not() -> None:
    watch = Watch()
    with watch.timed("short"):
        pass
    with watch.timed("long"):
        time.sleep(LONG_S)
    ((name, begin_ns, end_ns),) = watch.long_ones()
    assert (name, watch.num_calls) == ("long", 2)
    assert LONG_NS < end_ns - begin_ns < 20 * LONG_NS


def test_a_call_that_raises_is_timed() -> None:
    watch = Watch()

    def fail() -> None:
        time.sleep(LONG_S)
        raise KeyError

    with pytest.raises(KeyError):
        watched(watch, fail, lambda: "bad")()
    assert watch.long_ones()[0][0] == "bad"


def test_what_has_not_ended_is_seen() -> None:
    watch, go = Watch(), threading.Event()

    def hang() -> None:
        with watch.timed("hangs"):
            go.wait(20)

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(LONG_S)
    assert [one[0] for one in watch.long_ones()] == ["hangs (not ended)"]
    go.set()
    thread.join(20)
    assert [one[0] for one in watch.long_ones()] == ["hangs"]


def test_the_longest_stay() -> None:
    watch = Watch()
    for number in range(600):
        watch._note(str(number), 0, number)
    assert [one[0] for one in watch.long_ones()][-1] == "599"
    assert len(watch.long_ones()) == 500
    assert watch.num_long_lost == 100


def test_hooks_are_counted_with_and_without_loads() -> None:
    watch = Watch()
    hooks = WatchedHooks(watch)
    with hooks.timed("a"):
        time.sleep(LONG_S)
    with hooks.timed("b", with_load=True):
        time.sleep(LONG_S)
    with hooks.timed("register_kv_caches"):
        pass
    assert sum(hooks.histogram()) == 1
    assert [one[0] for one in watch.long_ones()] == ["hook a", "hook b with a load"]
    assert hooks.num_calls("b") == 1


def test_a_function_is_timed_by_the_name_of_its_call() -> None:
    watch = Watch()

    def slow(one: int, other: int = 0) -> int:
        time.sleep(LONG_S)
        return one + other

    timed = watched(watch, slow, lambda one, other=0: f"slow {one}")
    assert timed(1, other=2) == 3
    assert watch.long_ones()[0][0] == "slow 1"

"""A long call is noted once, with what its thread waits for; a process that stood still is told."""

from __future__ import annotations

import threading
import time

from tests.chaos.stacks import LONG_NS, Stacks
from tests.chaos.watch import Watch


def test_a_long_call_is_noted_once_with_its_stack() -> None:
    watch, go = Watch(), threading.Event()
    stacks = Stacks(watch)

    def wait_for_it() -> None:
        with watch.timed("hook x"):
            go.wait(30)

    thread = threading.Thread(target=wait_for_it, name="waiter")
    thread.start()
    now_ns = stacks.look(time.monotonic_ns())
    assert stacks.notes == []
    time.sleep(LONG_NS / 1e9 * 1.1)
    stacks.look(stacks.look(time.monotonic_ns()))
    go.set()
    thread.join(20)
    assert now_ns > 0
    assert len(stacks.notes) == 1
    assert "hook x for 1." in stacks.notes[0]
    assert "waiter" in stacks.notes[0]
    assert "wait_for_it" in stacks.notes[0]


def test_a_process_that_stood_still_is_told() -> None:
    stacks = Stacks(Watch())
    stacks.look(time.monotonic_ns() - 3 * LONG_NS)
    assert "did not get here for 3." in stacks.notes[0]

"""When a silent child hangs, and when it only waits for its turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from server.shell import silence
from server.shell.silence import MAX_LINE_BYTES, Patience, Silence, lines
from tests.wire.process import wait_until

FEW = Patience(turn_s=0.02, silent=2, start=4, busy=3)


def waits(one: Silence, most: int = 20) -> int:
    """Waits in vain until it is said to be stuck."""
    return next(number for number in range(1, most) if one.is_stuck())


@contextmanager
def process(script: str, state: str) -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-S", "-c", script])
    try:
        if state == "T":
            os.kill(child.pid, signal.SIGSTOP)
        assert wait_until(lambda: silence._state(child.pid) == state)
        yield child.pid
    finally:
        child.kill()
        child.wait(10)


def test_one_that_is_stopped_has_longer_for_its_start_than_later() -> None:
    with process("import time; time.sleep(60)", "T") as pid:
        one = Silence(pid, FEW)
        assert waits(one) == FEW.start
        one.heard()
        assert one.turns == 0
        assert waits(one) == FEW.silent


def test_one_that_sleeps_and_says_nothing_hangs() -> None:
    with process("import time; time.sleep(60)", "S") as pid:
        one = Silence(pid, FEW)
        one.heard()
        assert waits(one) == FEW.silent


def test_one_that_wants_a_processor_is_given_longer_and_not_for_ever() -> None:
    with process("while True: pass", "R") as pid:
        one = Silence(pid, FEW)
        one.heard()
        assert waits(one) == FEW.silent + FEW.busy


def test_one_that_is_gone_is_not_waited_for() -> None:
    assert silence._state(2**22 + 1) == "?"


def test_ten_seconds_it_is() -> None:
    assert Patience().turn_s * Patience().silent == 10


def test_lines_come_whole_long_ones_in_pieces_and_a_wait_in_vain_is_none() -> None:
    read, write = os.pipe()
    found = lines(read, 0.01)
    os.write(write, b"one\ntw")
    assert next(found) == b"one"
    assert next(found) is None
    os.write(write, b"o\n\n" + b"x" * (2 * MAX_LINE_BYTES + 5) + b"\nlast")
    assert next(found) == b"two"
    assert [len(next(found) or b"") for _ in range(3)] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]
    os.write(write, b"y" * MAX_LINE_BYTES)
    assert next(found) == b"last" + b"y" * (MAX_LINE_BYTES - 4)
    os.close(write)
    assert list(found) == [b"yyyy"]
    os.close(read)

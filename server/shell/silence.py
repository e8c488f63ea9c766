"""Lines of a child, and whether it has said nothing for too long.

Purpose: silence is counted in waits of the thread that listens, so that one wait in which this
process itself stood still counts as one, however long it was. A child that is silent because it
waits for a processor is given longer. Must not know: what lines mean. Runs in: the child's thread.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 1000
_READ_BYTES = 4096

_BUSY = "RD"
"""States of a process that would go on if it got a processor, or its memory back from a disk."""


class Patience(NamedTuple):
    """How long a child may be silent.

    Attributes:
        turn_s: one wait, seconds.
        silent: waits in vain until one is stuck that has spoken.
        start: until one is that has not: it imports first.
        busy: further waits for one that wants a processor.
    """

    turn_s: float = 2.0
    silent: int = 5
    start: int = 30
    busy: int = 30


class Silence:
    """Counts waits in vain for one child.

    Args:
        pid: its number.
        patience: how many are too many.
    """

    def __init__(self, pid: int, patience: Patience) -> None:
        self._pid = pid
        self._patience = patience
        self._limit = patience.start
        self.turns = 0

    def heard(self) -> None:
        """It said something."""
        self.turns = 0
        self._limit = self._patience.silent

    def is_stuck(self) -> bool:
        """Another wait was in vain; whether that was one too many."""
        self.turns += 1
        if self.turns < self._limit:
            return False
        return self.turns >= self._limit + self._patience.busy or _state(self._pid) not in _BUSY


def lines(fd: int, turn_s: float) -> Iterator[bytes | None]:
    """What comes through a pipe.

    Args:
        fd: its end.
        turn_s: longest wait, seconds.

    Yields:
        Each line, in pieces where it is too long; None for a wait in vain.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left = b""
    while True:
        if not poll.poll(turn_s * 1000):
            yield None
            continue
        data = os.read(fd, _READ_BYTES)
        *whole, left = (left + data).split(b"\n")
        for line in whole:
            yield from _pieces(line)
        if not data:
            yield from _pieces(left)
            return
        while len(left) >= MAX_LINE_BYTES:
            yield left[:MAX_LINE_BYTES]
            left = left[MAX_LINE_BYTES:]


def _pieces(line: bytes) -> Iterator[bytes]:
    for begin in range(0, len(line), MAX_LINE_BYTES):
        yield line[begin : begin + MAX_LINE_BYTES]


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "?"

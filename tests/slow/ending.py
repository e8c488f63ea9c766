"""Ends a step's process with everything that it started, and turns signals into one interruption.

Knows processes by ``/proc``: sessions of their own hide none. Must not know what they do. Runs in
the runner's process; no wait is longer than its limits here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

ASKED_S: Final = 20.0
"""For a child to end after SIGINT, as a test run does that still tears down its servers."""

TOLD_S: Final = 10.0
"""For what is left after that, from SIGTERM to SIGKILL."""

_LOOK_EVERY_S = 0.05
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Known = dict[int, int]
"""Processes by number, with when each began: a number alone may come to another one."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Has the first SIGINT, SIGTERM or SIGHUP raise KeyboardInterrupt, and further ones do nothing.

    A SIGHUP that is ignored, as under ``nohup``, stays so. Only in the main thread.
    """
    is_over = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            raise KeyboardInterrupt(signal.Signals(number).name)

    before = {
        number: signal.getsignal(number)
        for number in _SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(child: subprocess.Popen[bytes], asked_s: float = ASKED_S, told_s: float = TOLD_S) -> None:
    """Ends a child and all that descends from it: SIGINT to the child, SIGTERM, SIGKILL.

    Args:
        child: that may have ended already; what it started is then not known any more.
        asked_s: for the child to end by itself, seconds.
        told_s: from SIGTERM to SIGKILL for each that is left, seconds.
    """
    known: Known = {}
    _look(child.pid, known)
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGINT)
    _until_gone(child, known, asked_s, is_child_enough=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in alive(known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        _until_gone(child, known, told_s, is_child_enough=False)


def alive(known: Known) -> list[int]:
    """Those that still run; a zombie does not."""
    return [pid for pid, ticks in known.items() if began(pid) == ticks]


def began(pid: int) -> int | None:
    """When a process began, in ticks of the system's clock; None if it is gone or a zombie.

    Args:
        pid: its number.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _until_gone(
    child: subprocess.Popen[bytes], known: Known, limit_s: float, is_child_enough: bool
) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        for pid in alive(known):
            _look(pid, known)
        if child.poll() is not None and (is_child_enough or not alive(known)):
            return
        time.sleep(_LOOK_EVERY_S)


def _look(pid: int, known: Known) -> None:
    """Adds a process and its descendants to those that are known."""
    ticks = began(pid)
    if ticks is None:
        return
    known[pid] = ticks
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text(encoding="ascii").split():
                if int(word) not in known:
                    _look(int(word), known)

"""What the threads of a rank were doing while one of its calls took long.

A thread looks a few times a second. What it finds tells three kinds of hang apart: a call that
waits (its stack says for what), a process that did not run at all (this thread was away as well:
stopped, without a core, or somebody held the interpreter's lock), and a call that runs. Must not
know: what a call is about, who stopped whom. Runs in: a daemon thread of a rank's process.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Final

from tests.chaos.watch import Watch

LOOK_S: Final = 0.2
LONG_NS: Final = 1_000_000_000
_MAX_NOTES: Final = 20
_MAX_FRAMES: Final = 8


class Stacks:
    """Notes of long calls, each call once.

    Args:
        watch: knows what is under way.

    Attributes:
        notes: what was seen, with the clock that all processes share; the first twenty.
    """

    def __init__(self, watch: Watch) -> None:
        self.notes: list[str] = []
        self._watch = watch
        self._told: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name="chaos-stacks", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def _run(self) -> None:
        before_ns = time.monotonic_ns()
        while len(self.notes) < _MAX_NOTES:
            time.sleep(LOOK_S)
            before_ns = self.look(before_ns)

    def look(self, before_ns: int) -> int:
        """One look.

        Args:
            before_ns: when the last one was.

        Returns:
            When this one was.
        """
        now_ns = time.monotonic_ns()
        if now_ns - before_ns > LONG_NS:
            self.notes.append(
                f"at {now_ns}: this process did not get here for {(now_ns - before_ns) / 1e9:.2f} s"
            )
        for name, begin_ns in self._watch.running():
            if now_ns - begin_ns > LONG_NS and (name, begin_ns) not in self._told:
                self._told.add((name, begin_ns))
                spent = f"{(now_ns - begin_ns) / 1e9:.2f} s"
                self.notes.append(f"at {now_ns}: {name} for {spent}\n{_all_stacks()}")
        return now_ns


def _all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        last = traceback.extract_stack(frame)[-_MAX_FRAMES:]
        lines = [f"    {one.filename.split('/')[-1]}:{one.lineno} {one.name}" for one in last]
        parts.append("\n".join([f"  {names.get(ident, ident)}", *lines]))
    return "\n".join(parts)

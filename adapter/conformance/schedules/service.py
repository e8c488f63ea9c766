"""A server child for a run of schedules.

Must not know: engines. Runs in the caller's thread; the child dies with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from adapter.conformance.demo.processes import Child, Stage, stage

ARENA_BYTES: Final = 96 << 20
EXTENT_BYTES: Final = 4 << 20
_START_S: Final = 30.0


class Service:
    """``python -m server launch`` with folders of its own.

    Attributes:
        url: where engines reach it.
        child: the process.
    """

    def __init__(self, on: Stage, environ: Mapping[str, str]) -> None:
        """Starts it and waits until it says that it is ready.

        Args:
            on: the run it belongs to.
            environ: more of its environment.
        """
        self._environ = environ
        self.url = f"ipc://{on.folder}/kvkeep.sock"
        self._on = on
        self.child = self._start()

    def kill(self) -> None:
        """``kill -9``."""
        self.child.kill_9()

    def restart(self) -> None:
        """Ends it if it still runs, and starts it again at the same place."""
        self.child.stop()
        self.child = self._start()

    def pause(self) -> None:
        """Stops it where it is (SIGSTOP)."""
        os.kill(self.child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on (SIGCONT)."""
        os.kill(self.child.pid, signal.SIGCONT)

    def _start(self) -> Child:
        child = Child(
            self._on,
            "server",
            [
                *("-m", "server", "launch", "--endpoint", self.url),
                *("--arena-dir", str(self._on.arena_dir), "--l1-size", str(ARENA_BYTES)),
                *("--extent-size", str(EXTENT_BYTES), "--arena-at-exit", "remove"),
            ],
            self._environ,
        )
        child.read_line(_START_S)
        return child


@contextmanager
def serving(environ: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Starts a server; it and its folders are gone afterwards.

    Args:
        environ: more of its environment; settings of kvkeep in this process's own are left out.

    Yields:
        The server, ready.

    Raises:
        DemoError: it did not start, or there is no room for its arena.
    """
    with stage(ARENA_BYTES) as on:
        yield Service(on, environ or {})

"""A server child for a run of schedules.

Must not know: engines. Runs in the caller's thread; the child dies with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from adapter.conformance.demo.processes import Child, stage

ARENA_BYTES: Final = 96 << 20
EXTENT_BYTES: Final = 4 << 20
_START_S: Final = 30.0


class Service:
    """``python -m server launch`` with folders of its own.

    Attributes:
        url: where engines reach it.
        child: the process.
    """

    def __init__(self, url: str, child: Child) -> None:
        """Takes a child that said it is ready.

        Args:
            url: where engines reach it.
            child: the process.
        """
        self.url = url
        self.child = child


@contextmanager
def serving() -> Iterator[Service]:
    """Starts a server; it and its folders are gone afterwards.

    Yields:
        The server, ready.

    Raises:
        DemoError: it did not start, or there is no room for its arena.
    """
    with stage(ARENA_BYTES) as on:
        url = f"ipc://{on.folder}/kvkeep.sock"
        child = Child(
            on,
            "server",
            [
                *("-m", "server", "launch", "--endpoint", url),
                *("--arena-dir", str(on.arena_dir), "--l1-size", str(ARENA_BYTES)),
                *("--extent-size", str(EXTENT_BYTES)),
            ],
        )
        child.read_line(_START_S)
        yield Service(url, child)

"""Keeps the process running that serves pages and metrics over HTTP, if the operator wants one.

Purpose: it is a client like any other: it asks on the side socket and has nothing of the arena.
What keeps it from listening is said once, until that changes. Must not know: what the pages are,
how a process is kept running (``sidechild`` does). Runs in: the child's own thread; the rest in the
main thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from server.shell.complaints import Complaints
from server.shell.sidechild import FIRST_BACKOFF_S, SideChild, child_environment

MODULE = "server.web"

READY = "kvkeep pages: "
"""How the line begins that says where it listens."""

_SECRET = ("AWS_", "KVKEEP_VALKEY_", "OTEL_")
"""Variables of tiers' porters and of traces; whoever serves pages has no use for them."""


def web_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of that process.

    Args:
        environ: of this process.

    Returns:
        A copy with this installation first on the import path, and without credentials.
    """
    return child_environment(environ, _SECRET)


class WebChild(SideChild):
    """One process and its restarts.

    Args:
        side_path: of the server's side socket.
        listen: ``[HOST:]PORT``, checked.
        complaints: counts what goes wrong.
        module: what to run.
        first_backoff_s: pause after the first failure, in seconds; it doubles with each further.

    Attributes:
        url: where the pages are; empty while nothing listens.
        listens: told the address, in the thread, when it is another than before.
    """

    what = "the process that serves pages"
    lost, said, refused, stuck = "web_lost", "web_said", "web_refused", "web_stuck"
    counted = ("web_pid", "web_restarts")

    def __init__(
        self,
        side_path: str,
        listen: str,
        complaints: Complaints,
        module: str = MODULE,
        first_backoff_s: float = FIRST_BACKOFF_S,
    ) -> None:
        options = ("--side", side_path, "--listen", listen, "--parent", str(os.getpid()))
        command = [sys.executable, "-m", module, *options]
        super().__init__("web", command, _SECRET, complaints, first_backoff_s)
        self._told_url = ""
        self.listens: Callable[[str], None] = lambda url: None
        self.url = ""

    def take(self, line: str) -> bool:
        """Takes the line that says where it listens."""
        if not line.startswith(READY):
            return False
        self.url = line.removeprefix(READY)
        self.works()
        if self.url != self._told_url:
            self._told_url = self.url
            self.listens(self.url)
        return True

    def ended(self) -> None:
        """It listens no more."""
        self.url = ""

"""Keeps the process running that serves pages and metrics over HTTP, if the operator wants one.

Purpose: whatever happens to that process, the server serves on. It is a client like any other: it
asks on the side socket and has nothing of the arena, so its end needs no care but another start. It
dies with the server. What keeps it from listening is said once, until that changes. Must not know:
what the pages are. Runs in: its own thread, which must live as long as the process, since the
kernel ends that with the thread that started it; the rest in the main thread.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from protocol.logline import About
from server.shell.complaints import Complaints

MODULE = "server.web"

READY = "kvkeep pages: "
"""How the line begins that says where it listens."""

EXIT_CANNOT_LISTEN = 3

_LAST_WORD = "kvkeep: "
"""How the line begins that says why it ends."""

LAST_LINE_S = 1.0
"""How long before its end a line may have come that is told as the reason."""

MAX_BACKOFF_S = 30.0
END_TIMEOUT_S = 1.5
"""For one that was told to end; it has nothing to bring to an end but answers."""

_FIRST_BACKOFF_S = 0.2
_LONG_LIFE_S = 10.0
_MAX_LINE_BYTES = 1000

_SECRET = ("AWS_", "KVKEEP_VALKEY_")
"""Variables of tiers' porters; whoever serves pages has no use for them."""

_ROOT = str(Path(__file__).resolve().parents[2])

_log = logging.getLogger("kvkeep.server")


def web_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of that process.

    Args:
        environ: of this process.

    Returns:
        A copy with this installation first on the import path, and without credentials of tiers.
    """
    own = {name: text for name, text in environ.items() if not name.startswith(_SECRET)}
    rest = own.get("PYTHONPATH", "")
    own["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{rest}" if rest else _ROOT
    return own


class WebChild:
    """One process and its restarts.

    Args:
        side_path: of the server's side socket.
        listen: ``[HOST:]PORT``, checked.
        complaints: counts what goes wrong.
        module: what to run.
        first_backoff_s: pause after the first failure, in seconds; it doubles with each further.

    Attributes:
        listens: told the address, in the thread, when it is another than before.
        url: where the pages are; empty while nothing listens.
        starts: how often it was started.
    """

    def __init__(
        self,
        side_path: str,
        listen: str,
        complaints: Complaints,
        module: str = MODULE,
        first_backoff_s: float = _FIRST_BACKOFF_S,
    ) -> None:
        parent = str(os.getpid())
        options = ("--side", side_path, "--listen", listen, "--parent", parent)
        self._command = [sys.executable, "-m", module, *options]
        self._complaints = complaints
        self._first_backoff_s = first_backoff_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._reason = ""
        self._told_url = ""
        self.listens: Callable[[str], None] = lambda url: None
        self.url = ""
        self.starts = 0
        self._thread = threading.Thread(target=self._run, name="kvkeep-web", daemon=True)

    def start(self) -> None:
        """Starts the thread and with it the process; waits for neither."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs; the process may be dead for a moment."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Has the process end, without waiting for it; no other is started."""
        self._stopping.set()
        self._signal(subprocess.Popen.terminate)

    def stop(self, limit_s: float) -> bool:
        """Ends the process and the thread.

        Args:
            limit_s: longest wait, seconds.

        Returns:
            Whether both ended.
        """
        self.abandon()
        if self._thread.ident is None:
            return True
        end_s = time.monotonic() + limit_s
        self._thread.join(min(limit_s, END_TIMEOUT_S))
        if self._thread.is_alive():
            self._signal(subprocess.Popen.kill)
            self._thread.join(max(0.0, end_s - time.monotonic()))
        return not self._thread.is_alive()

    def figures(self) -> dict[str, int]:
        """For STATS: the process, 0 while none runs, and how often another was started."""
        child = self._child
        pid = child.pid if child is not None else 0
        return {"web_pid": pid, "web_restarts": max(0, self.starts - 1)}

    def _signal(self, send: Callable[[subprocess.Popen[bytes]], None]) -> None:
        with self._lock:
            if self._child is not None:
                send(self._child)

    def _run(self) -> None:
        backoff_s = self._first_backoff_s
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            try:
                self._one_life()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one may live
                self._complaints.note("web_lost", f"no pages are served: {error}", error)
            lived_long = time.monotonic() - begun_s > _LONG_LIFE_S
            backoff_s = self._first_backoff_s if lived_long else min(2 * backoff_s, MAX_BACKOFF_S)
            self._stopping.wait(backoff_s)

    def _one_life(self) -> None:
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C is for the server, which ends this one
            env=web_environment(os.environ),
        )
        with self._lock:
            self._child = child
        self.starts += 1
        if self._stopping.is_set():
            child.terminate()
        try:
            last = self._listen_to(child)
            code = child.wait()
        finally:
            with self._lock:
                self._child = None
            self.url = ""
            if child.stdout is not None:
                child.stdout.close()
        if not self._stopping.is_set():
            self._tell_end(child.pid, code, last)

    def _listen_to(self, child: subprocess.Popen[bytes]) -> str:
        """Reads what it says until it ends; what it logs goes into this log, at a bounded rate.

        Returns:
            Its last line, if that may be why it ended; what it said long before is not.
        """
        assert child.stdout is not None
        last, said_s = "", 0.0
        while data := child.stdout.readline(_MAX_LINE_BYTES):
            line = data.decode("utf-8", "replace").strip()
            if line.startswith(READY):
                self.url, self._reason = line.removeprefix(READY), ""
                if self.url != self._told_url:
                    self._told_url = self.url
                    self.listens(self.url)
                continue
            last, said_s = line, time.monotonic()
            if not line.startswith(_LAST_WORD):
                self._complaints.note("web_said", line, about=About(process="web"))
        is_why = last.startswith(_LAST_WORD) or time.monotonic() - said_s <= LAST_LINE_S
        return last if is_why else ""

    def _tell_end(self, pid: int, code: int, last: str) -> None:
        if code == EXIT_CANNOT_LISTEN:
            reason = last.removeprefix(_LAST_WORD) or "it does not say why"
            if reason != self._reason:
                self._reason = reason
                text = f"{reason}: the server serves on, and this is tried again"
                self._complaints.note("web_refused", text)
            return
        what = f": {last}" if last else ""
        text = f"the process that serves pages (pid {pid}) ended with {code}{what}; another follows"
        self._complaints.note("web_lost", text)

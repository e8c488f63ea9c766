"""Keeps one child process running that the server can do without.

Purpose: whatever happens to such a process, the server serves on. It has nothing of the arena, so
its end needs no care but another start. It dies with the server; what it writes goes into this log
at a bounded rate, and what keeps it from its work is said once, until that changes. One that is
silent for ten seconds hangs: it is killed, and another is started. Must not know: what the process
is for. Runs in: its own thread, which must live as long as the process, since the kernel ends that
with the thread that started it; the rest in the main thread.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from protocol.logline import About
from server.heartbeat import BEAT
from server.shell.complaints import Complaints
from server.shell.silence import Patience, Silence, lines

EXIT_REFUSED = 3
"""It cannot do its work here, and says why in its last line."""

LAST_WORD = "kvkeep: "
"""How the line begins that says why it ends."""

LAST_LINE_S = 1.0
"""How long before its end a line may have come that is told as the reason."""

MAX_BACKOFF_S = 30.0
END_TIMEOUT_S = 1.5
"""For one that was told to end; it has nothing to bring to an end that matters."""

FIRST_BACKOFF_S = 0.2
_LONG_LIFE_S = 10.0

_ROOT = str(Path(__file__).resolve().parents[2])


def child_environment(environ: Mapping[str, str], secret: tuple[str, ...]) -> dict[str, str]:
    """Environment of such a process.

    Args:
        environ: of this process.
        secret: beginnings of variables that are none of its business.

    Returns:
        A copy with this installation first on the import path, and without those.
    """
    own = {name: text for name, text in environ.items() if not name.startswith(secret)}
    rest = own.get("PYTHONPATH", "")
    own["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{rest}" if rest else _ROOT
    return own


class SideChild(ABC):
    """One process and its restarts. Subclasses say what its lines and its end mean.

    Args:
        name: short; its lines are said to be of this process.
        command: what to run.
        secret: beginnings of variables that it does not get.
        complaints: counts what goes wrong.
        first_backoff_s: pause after the first failure, in seconds; it doubles with each further.
        fds: descriptors that it inherits.

    Attributes:
        starts: how often it was started.
    """

    what = "a process"
    """What it is, for the line that says that it ended."""

    lost, said, refused, stuck = "lost", "said", "refused", "stuck"
    """Kinds of complaints: it ended, it logged something, it cannot do its work, it hung."""

    patience = Patience()
    """How long it may be silent."""

    counted = ("pid", "restarts")
    """Names of its figures."""

    def __init__(
        self,
        name: str,
        command: list[str],
        secret: tuple[str, ...],
        complaints: Complaints,
        first_backoff_s: float = FIRST_BACKOFF_S,
        fds: Sequence[int] = (),
    ) -> None:
        self._name = name
        self._command = command
        self._secret = secret
        self._complaints = complaints
        self._first_backoff_s = first_backoff_s
        self._fds = fds
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._reason = ""
        self.starts = 0
        self._thread = threading.Thread(target=self._run, name=f"kvkeep-{name}", daemon=True)

    @abstractmethod
    def take(self, line: str) -> bool:
        """Takes a line that is for this process; False for one that is for the log."""

    @abstractmethod
    def ended(self) -> None:
        """It ended. Nothing it said holds any more."""

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
        pid_name, restarts_name = self.counted
        return {pid_name: pid, restarts_name: max(0, self.starts - 1)}

    def works(self) -> None:
        """It does its work: what kept it from that before is over."""
        self._reason = ""

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
                text = f"{self.what} cannot be started: {error}"
                self._complaints.note(self.lost, text, error)
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
            env=child_environment(os.environ, self._secret),
            pass_fds=self._fds,
        )
        with self._lock:
            self._child = child
        self.starts += 1
        if self._stopping.is_set():
            child.terminate()
        try:
            last, is_stuck = self._listen_to(child)
            code = child.wait()
        finally:
            with self._lock:
                self._child = None
            self.ended()
            if child.stdout is not None:
                child.stdout.close()
        if not self._stopping.is_set() and not is_stuck:
            self._tell_end(child.pid, code, last)

    def _listen_to(self, child: subprocess.Popen[bytes]) -> tuple[str, bool]:
        """Reads what it says until it ends; what it logs goes into this log, at a bounded rate.

        Returns:
            Its last line, if that may be why it ended; what it said long before is not. And
            whether it was killed because it said nothing for too long.
        """
        assert child.stdout is not None
        last, said_s, is_stuck = "", 0.0, False
        silence = Silence(child.pid, self.patience)
        for data in lines(child.stdout.fileno(), self.patience.turn_s):
            if data is None:
                if not is_stuck and not self._stopping.is_set() and silence.is_stuck():
                    is_stuck = True
                    self._kill(child.pid, silence)
                continue
            silence.heard()
            line = data.decode("utf-8", "replace").strip()
            if line == BEAT or self.take(line):
                continue
            last, said_s = line, time.monotonic()
            if not line.startswith(LAST_WORD):
                about = About(process=self._name)
                self._complaints.note(self.said, line, about=about)
        is_why = last.startswith(LAST_WORD) or time.monotonic() - said_s <= LAST_LINE_S
        return (last if is_why else ""), is_stuck

    def _kill(self, pid: int, silence: Silence) -> None:
        silent_s = silence.turns * self.patience.turn_s
        text = f"{self.what} (pid {pid}) said nothing for {silent_s:.0f} s: killed; another follows"
        self._complaints.note(self.stuck, text)
        self._signal(subprocess.Popen.kill)

    def _tell_end(self, pid: int, code: int, last: str) -> None:
        if code == EXIT_REFUSED:
            reason = last.removeprefix(LAST_WORD) or "it does not say why"
            if reason != self._reason:
                self._reason = reason
                text = f"{reason}: the server serves on, and this is tried again"
                self._complaints.note(self.refused, text)
            return
        what = f": {last}" if last else ""
        text = f"{self.what} (pid {pid}) ended with {code}{what}; another follows"
        self._complaints.note(self.lost, text)

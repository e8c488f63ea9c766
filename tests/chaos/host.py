"""The server over all of its incarnations, with one endpoint and one arena folder.

Must not know: engines. One thread, which lives as long as the run: the kernel ends a server whose
thread is gone.
"""

from __future__ import annotations

import ctypes
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.processes import Grip, children_of, module_of
from tests.chaos.stops import Stops
from tests.chaos.tally import Tally

ROOT: Final = Path(__file__).resolve().parents[2]

_PR_SET_PDEATHSIG: Final = 1
_PRCTL: Final = ctypes.CDLL(None).prctl
_START_S: Final = 30.0
_END_S: Final = 30.0
_COPIERS_GONE_S: Final = 5.0
_COPIERS: Final = "server.copier."
_PORTERS: Final = "server.porter."
_LOGGED: Final = re.compile(r"\b(WARNING|ERROR|CRITICAL) [\w.]+: (\w+)|^(Traceback) ", re.M)
_READY: Final = re.compile(
    r"side socket (?P<side>\S+), arena .* started in (?P<started_s>[0-9.]+) s"
)


@dataclass
class Incarnation:
    """One server process.

    Attributes:
        grip: of its process.
        arena: size it was started with.
        ready_ns: when it said that it was ready.
        gone_ns: when it was hit for the last time; 0 while it lives.
        ready_s: from exec to ready.
        side: path of its side socket.
        copiers: its children, porters too, by pid.
    """

    grip: Grip
    arena: str
    ready_ns: int
    ready_s: float
    side: str
    gone_ns: int = 0
    copiers: dict[int, Grip] = field(default_factory=dict)


@dataclass(frozen=True)
class Succession:
    """An incarnation is to end and the next one to begin.

    Attributes:
        number: of the signal that ends it.
        wait_s: until the next one is started.
        arena: size of the next one's.
        stillborn_s: a server is started first and killed after so long, ready or not; 0 for none.
        done: set when the next one is ready, or the run is over.
    """

    number: int
    wait_s: float
    arena: str
    stillborn_s: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Server(threading.Thread):
    """Keeps a server there.

    Args:
        folder: for sockets and the log; a short path.
        arena_dir: of the arena.
        tally: counts what happens.
        stops: who was stopped when.
        extent: size of its extents.
        launcher: module and arguments before the server's own; for builds that are broken on
            purpose.
        l2: URLs of lower tiers.
    """

    def __init__(
        self,
        folder: Path,
        arena_dir: Path,
        tally: Tally,
        stops: Stops,
        extent: str,
        launcher: Sequence[str] = ("server", "launch"),
        l2: Sequence[str] = (),
    ) -> None:
        super().__init__(name="server", daemon=True)
        self.wire = f"{folder}/s"
        self.url = f"ipc://{self.wire}"
        self.arena_dir = arena_dir
        self.log_path = folder / "server.log"
        self.now: Incarnation | None = None
        self.ready_s: list[float] = []
        self._tally, self._stops = tally, stops
        self._extent = extent
        self._launcher = tuple(launcher)
        self._tiers = tuple(word for url in l2 for word in ("--l2", url))
        self._turn = 0
        self._orders: queue.SimpleQueue[Succession | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._old: list[Grip] = []
        self.failure = ""

    @property
    def side(self) -> str:
        """Path of the side socket, the same for all incarnations."""
        return f"{self.wire}.side"

    def succeed(self, order: Succession) -> None:
        """Has an incarnation follow; returns at once."""
        self._orders.put(order)

    def end(self) -> None:
        """Has the last one end by SIGTERM; ``join`` waits for it."""
        self._orders.put(None)

    def run(self) -> None:
        """Follows orders until told to end."""
        order: Succession | None = None
        try:
            while (order := self._orders.get()) is not None:
                self._end_present(order.number)
                time.sleep(order.wait_s)
                if order.stillborn_s:
                    self._miscarry(order)
                self._begin(order.arena)
                order.done.set()
            code = self._end_present(signal.SIGTERM)
            if code != 0:
                self._tally.trouble(f"the last server ended with exit code {code}")
        except Exception as error:  # noqa: BLE001 - the run ends with it
            self.failure = f"{error!r}; log: {self.log_tail()}"
            self._tally.trouble(f"no server: {self.failure}")
            if order is not None:
                order.done.set()

    def _launch(self, arena: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *self._launcher, "--endpoint", self.url]
        command += ["--arena-dir", str(self.arena_dir), "--l1-size", arena]
        command += ["--extent-size", self._extent, "--log-level", "INFO", *self._tiers]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the run, which then ends it
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - one system call
            )

    def _miscarry(self, order: Succession) -> None:
        """Whatever a server has begun to adopt, or to take away, it is killed over it."""
        process = self._launch(order.arena)
        time.sleep(order.stillborn_s)
        copiers = _grips(children_of(process.pid))
        process.kill()
        if process.wait(_END_S) == -signal.SIGKILL:
            self._tally.event("server_kills")
            self._tally.event("servers_killed_at_start")
        else:
            self._tally.trouble(f"a server ended by itself at its start: {self.log_tail()}")
        _close(process)
        self._await_copiers(copiers)

    def _begin(self, arena: str) -> None:
        begin_s = time.monotonic()
        process = self._process = self._launch(arena)
        grip = Grip(process.pid)
        line = _line_of(process, _START_S)
        match = _READY.search(line)
        if match is None:
            grip.close()
            process.kill()
            code = process.wait(_END_S)
            _close(process)
            raise RuntimeError(f"the server said {line!r}, exit code {code}")
        took_s = time.monotonic() - begin_s
        self.ready_s.append(took_s)
        self.now = Incarnation(grip, arena, time.monotonic_ns(), took_s, match["side"])
        self._tally.event("server_starts")

    def _end_present(self, number: int) -> int:
        now, process = self.now, self._process
        if now is None or process is None:
            return 0
        copiers = _grips(pid for pid in children_of(now.grip.pid) if pid not in now.copiers)
        copiers += now.copiers.values()
        now.gone_ns = time.monotonic_ns()
        now.grip.signal(number)
        now.grip.signal(signal.SIGCONT)  # a stopped one does not see SIGTERM
        self.now = None
        code = process.wait(_END_S)
        self._stops.end(process.pid)
        _close(process)
        if number == signal.SIGKILL and code == -signal.SIGKILL:
            self._tally.event("server_kills")
        elif number == signal.SIGTERM and code == 0:
            self._tally.event("server_ends")
        else:
            self._tally.trouble(
                f"a server ended with {code} before it was hit with {number}; its log:\n"
                f"{self.log_tail()}"
            )
        self._await_copiers(copiers)
        self._old.append(now.grip)
        return code

    def _await_copiers(self, copiers: Iterable[Grip]) -> None:
        for grip in copiers:
            if not grip.wait_gone(_COPIERS_GONE_S):
                self._tally.trouble(f"copier {grip.pid} outlived its server by 5 s")
            self._old.append(grip)

    def copier(self) -> Grip | None:
        """A child that copies, in turn; None while there is none."""
        return self._child(_COPIERS)

    def porter(self) -> Grip | None:
        """The process of a lower tier, in turn; None while there is none."""
        return self._child(_PORTERS)

    def _child(self, package: str) -> Grip | None:
        now = self.now
        if now is None:
            return None
        alive = []
        for pid in children_of(now.grip.pid):
            # What has just been forked is still called as its parent is, and is passed over.
            if not module_of(pid).startswith(package):
                continue
            if pid not in now.copiers:
                try:
                    now.copiers[pid] = Grip(pid)
                except (ProcessLookupError, OSError):
                    continue
            if now.copiers[pid].is_alive:
                alive.append(now.copiers[pid])
        self._turn += 1
        return alive[self._turn % len(alive)] if alive else None

    def processes_left(self) -> int:
        """Processes of any incarnation that have not exited; lets go of all."""
        left = sum(grip.is_alive for grip in self._old)
        for grip in self._old:
            grip.close()
        self._old = []
        return left

    def log_kinds(self) -> dict[str, int]:
        """Lines of all servers' log above INFO, by level and the word they begin with."""
        found: dict[str, int] = {}
        if self.log_path.exists():
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
            for match in _LOGGED.finditer(text):
                kind = match[3] or f"{match[1]} {match[2]}"
                found[kind] = found.get(kind, 0) + 1
        return dict(sorted(found.items()))

    def log_tail(self, num_lines: int = 20) -> str:
        """The end of the servers' log."""
        if not self.log_path.exists():
            return ""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-num_lines:])


def _grips(pids: Iterable[int]) -> list[Grip]:
    """Of those that are still there."""
    found = []
    for pid in pids:
        try:
            found.append(Grip(pid))
        except (ProcessLookupError, OSError):
            continue
    return found


def _close(process: subprocess.Popen[str]) -> None:
    if process.stdout is not None:
        process.stdout.close()


def _line_of(process: subprocess.Popen[str], limit_s: float) -> str:
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return process.stdout.readline() if poll.poll(limit_s * 1000) else ""


def _end_with_parent() -> None:
    _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

"""Traps in the gaps between an engine's messages, what is done to its server there, and the clocks.

A trap waits at one point of a request's life, on whichever thread comes by: the executor's (queries
and the host's own points) or the saver's. Whatever it does there is taken out of the hook's time.
Runs in the pytest process.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapter.channel import Channel
from adapter.conformance.host.hooks import BRING_UP, HookRecorder
from protocol.messages import (
    Commit,
    Done,
    EndSession,
    Lookup,
    Released,
    Retrieve,
    RetrieveReply,
    Store,
    Unregister,
)
from protocol.namespace import Namespace
from tests.wire.client import Engine, make_keys
from tests.wire.process import ServerProcess

ARENA = ("--l1-size", "4M", "--extent-size", "1M")
"""Small, so that another engine can fill it between two messages."""

PULSE_STOPPED_S, PULSE_RUNNING_S = 0.012, 0.004
PAUSE_S = 0.08
P999 = 0.999
_LONGEST_S = 30.0
_BATCH = 256
_MOST_BATCHES = 64

DISTURBANCES = ("full", "stopped", "paused", "slow", "copiers stopped", "killed")

GAPS = {
    "before LOOKUP": "before Lookup",
    "LOOKUP to RETRIEVE": "before Retrieve",
    "RETRIEVE to offer": "after Retrieve",
    "offer to pages": "queried",
    "pages to copy": "bound",
    "copy to end": "iteration",
    "before STORE": "before Store",
    "STORE to reply": "after Store",
    "reply to COMMIT": "before Commit",
    "after COMMIT": "after Commit",
}
"""Every gap of a request that loads and saves, and the point where its trap waits."""

_NEED_AN_OFFER = ("queried", "bound", "iteration")
_WATCHED = {kind: kind.__name__ for kind in (Lookup, Retrieve, Store, Commit)}


class Trap:
    """At most one act waits, at one point; it is done once.

    Attributes:
        error: what an act raised: the test's own failure, of which the engine is not told.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._point = ""
        self._act: Callable[[], object] = bool
        self._has_offer = self._was_reached = False
        self._is_over = threading.Event()
        self._spent = threading.local()
        self.error: BaseException | None = None

    @property
    def was_sprung(self) -> bool:
        """Whether the act is over."""
        return self._is_over.is_set()

    def arm(self, point: str, act: Callable[[], object]) -> None:
        """Waits at a point from now on."""
        self._is_over.clear()
        with self._lock:
            self._point, self._act = point, act
            self._has_offer = self._was_reached = False

    def disarm(self) -> bool:
        """Waits no more; returns whether the act was done, which it then is to its end."""
        with self._lock:
            self._point = ""
        return self._was_reached and self._is_over.wait(_LONGEST_S)

    def reach(self, point: str) -> None:
        """Called at every point, on any thread."""
        with self._lock:
            if point == "offered":
                self._has_offer = True
            is_here = point == self._point and (self._has_offer or point not in _NEED_AN_OFFER)
            if is_here:
                self._point, self._was_reached = "", True
        if not is_here:
            return
        began_ns = time.perf_counter_ns()
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - told to the test, not to the engine
            self.error = error
        self._spent.ns = self.spent_ns() + time.perf_counter_ns() - began_ns
        self._is_over.set()

    def spent_ns(self) -> int:
        """Time that acts took on the calling thread."""
        return int(getattr(self._spent, "ns", 0))

    def set_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watches the messages of every channel."""
        call, submit = Channel.call, Channel.submit

        def watched_call(channel: Channel, body: Any, *more: Any, **named: Any) -> Any:
            name = _WATCHED.get(type(body), "")
            self.reach(f"before {name}")
            reply = call(channel, body, *more, **named)
            if isinstance(reply, RetrieveReply):
                self.reach("offered")
            self.reach(f"after {name}")
            return reply

        def watched_submit(channel: Channel, body: Any, *more: Any, **named: Any) -> int:
            name = _WATCHED.get(type(body), "")
            self.reach(f"before {name}")
            ticket = submit(channel, body, *more, **named)
            self.reach(f"after {name}")
            return ticket

        monkeypatch.setattr(Channel, "call", watched_call)
        monkeypatch.setattr(Channel, "submit", watched_submit)


@dataclass
class Times:
    """What hooks took, in milliseconds, without what traps did in them.

    Attributes:
        hooks: of each call without a load.
        hooks_own: the same, without the time for which the machine had no core for the thread.
        sums: of each iteration without a load, all its hooks together.
        sums_own: likewise.
        loads: of each call with a load.
        longest: name of the longest hook without a load.
    """

    hooks: list[float] = field(default_factory=list)
    hooks_own: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    sums_own: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    longest: str = ""

    def extend(self, other: Times) -> None:
        """Adds another's."""
        if max(other.hooks, default=0.0) > max(self.hooks, default=0.0):
            self.longest = other.longest
        for name in ("hooks", "hooks_own", "sums", "sums_own", "loads"):
            getattr(self, name).extend(getattr(other, name))

    def figures(self, what: str) -> dict[str, float | int | str]:
        """For ``build/hooks.json``."""
        figures: dict[str, float | int | str] = {
            f"{what}, hooks without a load": len(self.hooks),
            f"{what}, longest of them": self.longest,
        }
        for name, values in (("hook", self.hooks), ("iteration", self.sums)):
            own = {"hook": self.hooks_own, "iteration": self.sums_own}[name]
            figures |= {
                f"{what}, {name} p50, ms": round(quantile(values, 0.5), 3),
                f"{what}, {name} p99.9, ms": round(quantile(values, P999), 3),
                f"{what}, {name} p99.9 without waits for a core, ms": round(quantile(own, P999), 3),
                f"{what}, {name} longest, ms": round(max(values, default=0.0), 3),
            }
        return figures | {
            f"{what}, hook with a load longest, ms": round(max(self.loads, default=0.0), 3)
        }


def quantile(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class TimesRecorder(HookRecorder):
    """Keeps every duration, and their sum for each iteration. The executor's thread writes."""

    def __init__(self, trap: Trap) -> None:
        super().__init__()
        self._trap = trap
        self._sum_ms, self._sum_own_ms, self._longest_ms = 0.0, 0.0, 0.0
        self._has_load = False
        self.times = Times()

    def take(self) -> Times:
        """What there is since the last time; only while nothing runs."""
        times, self.times, self._longest_ms = self.times, Times(), 0.0
        return times

    @contextmanager
    def timed(self, name: str, *, with_load: bool = False) -> Iterator[None]:
        spent_ns, waited_ns = self._trap.spent_ns(), _waited_ns()
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            taken_ns = time.perf_counter_ns() - began_ns - (self._trap.spent_ns() - spent_ns)
            if name not in BRING_UP:
                self._add(name, with_load, taken_ns / 1e6, (_waited_ns() - waited_ns) / 1e6)

    def _add(self, name: str, with_load: bool, taken_ms: float, waited_ms: float) -> None:
        times, own_ms = self.times, max(0.0, taken_ms - waited_ms)
        self._sum_ms += taken_ms
        self._sum_own_ms += own_ms
        self._has_load = self._has_load or with_load
        if with_load:
            times.loads.append(taken_ms)
            return
        if taken_ms > self._longest_ms:
            times.longest, self._longest_ms = name, taken_ms
        times.hooks.append(taken_ms)
        times.hooks_own.append(own_ms)

    def end_iteration(self) -> None:
        """The host's point ``iteration``."""
        if not self._has_load:
            self.times.sums.append(self._sum_ms)
            self.times.sums_own.append(self._sum_own_ms)
        self._sum_ms, self._sum_own_ms, self._has_load = 0.0, 0.0, False


def _waited_ns() -> int:
    """How long this thread was ready to run and had no core."""
    try:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        return int(Path(path).read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0  # a kernel without these: every wait counts as the hook's


class Service:
    """A server that can be disturbed in every way and is whole again afterwards."""

    def __init__(self, folder: Path, arena: Path) -> None:
        self._folder, self._arena = folder, arena
        self._undo = ExitStack()
        self._rival: Engine | None = None
        self.process = ServerProcess(folder, arena, *ARENA)
        self.url = self.process.url

    def disturb(self, how: str) -> None:
        """Begins one of ``DISTURBANCES``; ``mend`` ends it. Any thread."""
        if how == "killed":
            self.process.kill()
        elif how == "stopped":
            self._stop(self.process.pid)
        elif how == "paused":
            self._stop(self.process.pid)
            timer = threading.Timer(PAUSE_S, os.kill, (self.process.pid, signal.SIGCONT))
            timer.start()
            self._undo.callback(timer.join)
        elif how == "slow":
            self._pulse()
        elif how == "copiers stopped":
            for pid in self.process.children():
                self._stop(pid)
        else:
            self._fill()

    def prepare(self, how: str, namespace: Namespace) -> None:
        """Has at hand whatever a disturbance needs.

        Args:
            how: one of ``DISTURBANCES``.
            namespace: whose chunks a rival fills the arena with.
        """
        if how == "full" and self._rival is None:
            self._rival = Engine(self.url, self.process.side_path, namespace, _BATCH)
            self._rival.register()
            self._rival.pump_while_waiting()

    def mend(self) -> None:
        """Ends the disturbance; starts a server again if there is none."""
        self._undo.close()
        if self.process.process.poll() is not None:
            self._dismiss_rival()
            self.process = ServerProcess(self._folder, self._arena, *ARENA)

    def close(self) -> None:
        """Ends everything."""
        self._undo.close()
        self._dismiss_rival()
        self.process.__exit__(None, None, None)

    def _dismiss_rival(self) -> None:
        rival, self._rival = self._rival, None
        if rival is not None:
            if self.process.process.poll() is None:
                rival.wire.call(Unregister(session=rival.session), Done)
            rival.close()

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._undo.callback(os.kill, pid, signal.SIGCONT)

    def _pulse(self) -> None:
        """A server that runs for a quarter of the time, in pieces."""
        is_over, pid = threading.Event(), self.process.pid

        def pulse() -> None:
            end_s = time.monotonic() + _LONGEST_S
            while not is_over.is_set() and time.monotonic() < end_s:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(PULSE_STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                is_over.wait(PULSE_RUNNING_S)

        thread = threading.Thread(target=pulse, name="pulses")
        thread.start()
        self._undo.callback(thread.join)
        self._undo.callback(is_over.set)

    def _fill(self) -> None:
        """Another engine of the same model saves and leases until there is no room at all."""
        rival = self._rival
        assert rival is not None, "prepare() comes first"
        pages = list(range(_BATCH))
        for request in range(1, _MOST_BATCHES):
            keys = make_keys(int.from_bytes(os.urandom(4), "little"), _BATCH)
            saved = rival.save(keys, pages)
            if saved:
                _lease(rival, keys[:saved], request)
                self._undo.callback(_end, rival, request)
            if saved < _BATCH:
                break
        else:
            raise AssertionError("the arena has no end")


def _lease(engine: Engine, keys: list[bytes], request: int) -> None:
    # What was saved just now may lie in an extent that this engine has yet to map.
    end_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < end_s:
        engine.pump()
        found = engine.lookup(keys, request)
        if found.ready == len(keys):
            return
    raise AssertionError(f"{len(keys)} chunks were saved and are not there")


def _end(engine: Engine, request: int) -> None:
    engine.wire.call(EndSession(session=engine.session, request=request), Released)


def note(build_dir: Path, figures: dict[str, Any]) -> None:
    """Adds figures to ``build/hooks.json``; other test processes do so as well."""
    path = build_dir / "hooks.json"
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        kept = json.loads(text) if text else {}
        file.seek(0)
        file.truncate()
        json.dump(kept | figures, file, indent=1)

"""What a test makes happen inside one rank, at an exact point of its iterations.

A rank may be late, die at once, stop, or have something raise, at any probe point of the host or
at a point that a plug-in of the test adds. Must not know: the host beyond its probe, the
connector. Points are passed on the rank's threads; arming comes from the control channel's.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import Literal

from adapter.conformance.host.errors import HostError

Deed = Literal["delay", "die", "stop", "fail"]


class InjectedError(HostError):
    """A test asked for this."""


@dataclass
class Trap:
    """Something armed.

    Attributes:
        point: Name of the point.
        deed: ``delay`` sleeps, until it is disarmed at most; ``die`` is kill -9, ``stop`` is
            SIGSTOP, ``fail`` raises.
        seconds: Of a delay.
        skip: Passes that are let through before.
        times: Passes it acts on.
    """

    point: str
    deed: Deed
    seconds: float = 0.0
    skip: int = 0
    times: int = 1


class Injector:
    """Holds what is armed in this process, and counts passes."""

    def __init__(self) -> None:
        """Start with nothing armed."""
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._passes: dict[str, int] = {}
        self._disarmed = threading.Event()

    def arm(self, trap: Trap) -> None:
        """Make something happen from now on."""
        with self._lock:
            self._traps.append(trap)
            self._disarmed.clear()

    def disarm(self) -> None:
        """Take back everything that has not happened, and end the delays under way."""
        with self._lock:
            self._traps.clear()
            self._disarmed.set()

    def passes(self) -> dict[str, int]:
        """How often each point was passed."""
        with self._lock:
            return dict(self._passes)

    def probe(self, point: str, request_ids: tuple[int, ...]) -> None:
        """The host's probe; see ``options.Probe``."""
        self.reach(point)

    def reach(self, point: str) -> None:
        """Pass a point.

        Args:
            point: Its name.

        Raises:
            InjectedError: If a test armed that.
        """
        for trap in self._due(point):
            if trap.deed == "delay":
                self._disarmed.wait(trap.seconds)
            elif trap.deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif trap.deed == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                raise InjectedError(f"injected at {point}")

    def _due(self, point: str) -> list[Trap]:
        due = []
        with self._lock:
            self._passes[point] = self._passes.get(point, 0) + 1
            for trap in [trap for trap in self._traps if trap.point == point]:
                if trap.skip:
                    trap.skip -= 1
                    continue
                due.append(trap)
                trap.times -= 1
                if not trap.times:
                    self._traps.remove(trap)
        return due

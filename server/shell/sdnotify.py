"""What the service manager is told: that engines can connect, that the loop turns, that it ends.

Purpose: systemd's notification protocol, one datagram for each thing told, to the socket that
NOTIFY_SOCKET names. Without that variable nothing is sent. Must not know: what a server does while
it starts. Runs in: the main thread, which sends without ever waiting: it may hold up no engine.

Two things are kept honest. A sign of life is sent from the loop's own turns alone, never from a
thread that would go on while the loop stands still. And the start is extended stage by stage, each
time by a bound for that stage, never in advance and never by a timer: a start that hangs is ended
when its stage's bound is over.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, MutableMapping
from typing import Final

from server.shell import clock

ENV_SOCKET: Final = "NOTIFY_SOCKET"
ENV_WATCHDOG_US: Final = "WATCHDOG_USEC"
ENV_WATCHDOG_PID: Final = "WATCHDOG_PID"

MIN_WATCHDOG_US: Final = 3_000_000
"""The loop may idle for a second and is asked about once a second: less could not be kept."""

STAGE_S: Final = 30.0
SLOT_S: Final = 1e-4
"""For each slot that a stage looks at: 40 times what it takes where nothing else runs."""

END_S: Final = 60.0
"""More than all that the end waits for, one after the other."""

_MAX_WATCHDOG_US: Final = 1 << 62
_SIGNS_PER_PERIOD: Final = 3
_NS_PER_US: Final = 1000
_MAX_STATUS_CHARS: Final = 200

_log = logging.getLogger("kvkeep.server")


class Notifier:
    """Tells the service manager, if there is one.

    Attributes:
        num_lost: datagrams that found no room, or nobody.
    """

    def __init__(
        self, address: str = "", watchdog_us: int = 0, now_ns: Callable[[], int] = clock.now_ns
    ) -> None:
        """Sends nothing yet. An address that cannot be one is said in the log.

        Args:
            address: of the manager's socket: an absolute path, or ``@`` and an abstract name; empty
                for no manager.
            watchdog_us: longest time between two signs of life, in microseconds; 0 for none wanted.
            now_ns: monotonic clock.
        """
        self.num_lost = 0
        self._now_ns = now_ns
        self._period_ns = watchdog_us * _NS_PER_US // _SIGNS_PER_PERIOD
        self._next_sign_ns = 0
        self._owed = ""
        # "@name" is how systemd writes the abstract name "\0name". Others, such as vsock:, are
        # for virtual machines.
        self._target = f"\0{address[1:]}" if address.startswith("@") else address
        if address and (address[0] not in "/@" or len(address) < 2):
            _log.warning("notify_socket: %s=%.200s cannot be used", ENV_SOCKET, address)
            self._target = ""

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str], pid: int) -> Notifier:
        """The manager that an environment names; its variables are removed there.

        Children would inherit them, and could speak for the server.

        Args:
            environ: of this process.
            pid: of this process.

        Returns:
            One that says nothing where there is no manager.
        """
        address = environ.pop(ENV_SOCKET, "")
        period = environ.pop(ENV_WATCHDOG_US, "")
        whose = environ.pop(ENV_WATCHDOG_PID, "")
        watchdog_us = 0
        if period.isascii() and period.isdecimal() and whose in ("", str(pid)):
            watchdog_us = min(int(period[:20]), _MAX_WATCHDOG_US)
        if address and 0 < watchdog_us < MIN_WATCHDOG_US:
            _log.warning(
                "notify_watchdog: WatchdogSec is %.3f s; with less than %.0f a server that is "
                "well may be taken for one that hangs",
                watchdog_us / 1e6,
                MIN_WATCHDOG_US / 1e6,
            )
        return cls(address, watchdog_us)

    def stage(self, what: str, slots: int = 0, limit_s: float = STAGE_S) -> None:
        """A part of the start begins; when its time is over the manager may end this process.

        Args:
            what: a few words, for ``systemctl status``.
            slots: that it looks at, one by one.
            limit_s: longest that it may take beside those, in seconds.
        """
        limit_us = int((limit_s + slots * SLOT_S) * 1e6)
        self._send(f"EXTEND_TIMEOUT_USEC={limit_us}\n{_status(what)}")

    def ready(self, what: str) -> None:
        """Engines can connect.

        Args:
            what: a few words, for ``systemctl status``.
        """
        text = f"READY=1\n{_status(what)}"
        if not self._send(text):
            self._owed = text  # said again with the next sign of life

    def alive(self) -> None:
        """A turn of the loop has ended. Called about once a second, by the loop."""
        if not self._target:
            return
        if self._owed and self._send(self._owed):
            self._owed = ""
        now_ns = self._now_ns()
        if not self._period_ns or now_ns < self._next_sign_ns:
            return
        if self._send("WATCHDOG=1"):
            self._next_sign_ns = now_ns + self._period_ns

    def stopping(self) -> None:
        """The end begins."""
        self._owed = ""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(END_S * 1e6)}\n{_status('ending')}")

    def _send(self, text: str) -> bool:
        """Whether it was taken, or there is nobody to take it."""
        if not self._target:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.setblocking(False)
                one.sendto(text.encode("utf-8", "replace"), self._target)
        except OSError as error:
            if not self.num_lost:
                _log.warning("notify_socket: the service manager was not told: %s", error)
            self.num_lost += 1
            return False
        return True


def _status(text: str) -> str:
    line = " ".join(text.split())
    return f"STATUS={line[:_MAX_STATUS_CHARS]}"

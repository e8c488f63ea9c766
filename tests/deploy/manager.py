"""A service manager for tests: what systemd does with the notifications of a ``Type=notify`` unit.

Binds a real notification socket, reads what a service sends, and applies systemd's rules to it: the
start ends in time or is ended, an extension never shortens, a watchdog counts from READY on, and
only what the main process sends counts. Knows nothing of kvkeep. Runs in the pytest process.

Source: systemd.service(5), sd_notify(3); ``service_extend_event_source_timeout`` of systemd 252.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_UCRED = struct.Struct("3i")


@dataclass(frozen=True)
class Told:
    """One datagram: when it came, whose it is, and its assignments."""

    at_s: float
    pid: int
    values: dict[str, str]


@dataclass
class Manager:
    """One service, watched.

    Attributes:
        address: what NOTIFY_SOCKET is set to.
        start_s: TimeoutStartSec.
        watchdog_s: WatchdogSec, 0 for none.
        told: everything that came, in order.
        ready_at_s: when READY=1 came; ``time.monotonic`` as all times here.
        is_stopping: whether STOPPING=1 came.
        status: the last STATUS.
    """

    address: str
    start_s: float = 10.0
    watchdog_s: float = 0.0
    main_pid: int = 0
    told: list[Told] = field(default_factory=list)
    ready_at_s: float | None = None
    is_stopping: bool = False
    status: str = ""

    def __post_init__(self) -> None:
        """Binds the socket; the clock of the start runs from here."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        self._socket.bind(name)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.begin(0)

    def begin(self, main_pid: int) -> None:
        """A service is started; what an earlier one said is forgotten.

        Args:
            main_pid: whose words count; 0 for anybody's.
        """
        self.main_pid = main_pid
        self.ready_at_s, self.is_stopping, self.status = None, False, ""
        self._start_by_s = time.monotonic() + self.start_s
        self._alive_at_s = 0.0
        self.told.clear()

    def environ(self, pid: int | None = None) -> dict[str, str]:
        """What systemd puts into the service's environment."""
        found = {"NOTIFY_SOCKET": self.address}
        if self.watchdog_s:
            found["WATCHDOG_USEC"] = str(int(self.watchdog_s * 1e6))
            if pid is not None:
                found["WATCHDOG_PID"] = str(pid)
        return found

    def hurry(self, left_s: float) -> None:
        """Most of the start's time is gone: so much is left of it, in seconds."""
        self._start_by_s = time.monotonic() + left_s

    def wait_for(self, key: str, value: str = "1", limit_s: float = 30.0) -> Told:
        """Reads on until an assignment of the service's has come.

        Raises:
            AssertionError: it did not, or the service would have been ended meanwhile.
        """
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            for told in self.told:
                if told.values.get(key) == value:
                    return told
            result = self.watch(0.05)
            assert result == "", result
        raise AssertionError(f"no {key}={value} within {limit_s} s: {self.told}")

    def watch(self, limit_s: float, *, until_ready: bool = False) -> str:
        """Reads and judges for a while.

        Args:
            limit_s: longest time, in seconds.
            until_ready: return as soon as the service is ready.

        Returns:
            Empty while all is well, else the result as systemd names it: ``timeout`` for a start
            that took too long, ``watchdog`` for a service without a sign of life.
        """
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            if until_ready and self.ready_at_s is not None:
                return ""
            due_s = self._due_s()
            wait_s = left_s if due_s is None else min(left_s, due_s - time.monotonic())
            self._socket.settimeout(max(0.001, wait_s))
            try:
                self._take(*self._receive())
            except TimeoutError:
                if due_s is not None and time.monotonic() >= due_s:
                    return "timeout" if self.ready_at_s is None else "watchdog"
        return ""

    def _due_s(self) -> float | None:
        if self.ready_at_s is None:
            return self._start_by_s
        if self.watchdog_s and not self.is_stopping:
            return self._alive_at_s + self.watchdog_s
        return None

    def _receive(self) -> tuple[bytes, int]:
        data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(_UCRED.size))
        pids = [
            _UCRED.unpack(content)[0]
            for level, kind, content in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        return data, pids[0]

    def _take(self, data: bytes, pid: int) -> None:
        now_s = time.monotonic()
        lines = data.decode().split("\n")
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        self.told.append(Told(now_s, pid, values))
        if self.main_pid and pid != self.main_pid:  # NotifyAccess=main
            return
        self.status = values.get("STATUS", self.status)
        self.is_stopping |= values.get("STOPPING") == "1"
        if "EXTEND_TIMEOUT_USEC" in values:
            extended_s = now_s + int(values["EXTEND_TIMEOUT_USEC"]) / 1e6
            self._start_by_s = max(self._start_by_s, extended_s)
        if values.get("READY") == "1":
            self.ready_at_s = self._alive_at_s = now_s
        if values.get("WATCHDOG") == "1":
            self._alive_at_s = now_s

    def close(self) -> None:
        """Lets go of the socket and its name."""
        self._socket.close()
        if not self.address.startswith("@") and os.path.lexists(self.address):
            Path(self.address).unlink()

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

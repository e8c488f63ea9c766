"""Faults of a simulated device, planted by a test in this process or in another one.

A fault planted in the folder's control file reaches every process that uses the folder at its next
call of the device, narrowed by process id or by a part of the command line.

Must not know: what the calls do. Called on whatever thread calls the device.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from protocol.device.interface import DeviceError

CONTROL = "faults.json"
ANY = "*"
_NAP_S = 0.01


@dataclass(frozen=True)
class Fault:
    """What goes wrong, when, and in which process.

    Attributes:
        call: name of a ``Device`` method, or ``run`` (a piece of a copy, on the stream's thread),
            ``query``, ``close`` (of opened memory), ``unpin``, ``malloc``; ``*`` is all.
        code: raised; empty for none, e.g. when it only hangs.
        is_sticky: the process's device is lost from then on.
        device: number of the device; None is all.
        after: calls that still work in each process.
        times: calls that fail after these; None is all.
        hang_s: seconds the call is held up first, while the fault stays planted.
        holds_gil: whether no other thread of the process runs meanwhile.
        pid: of the one process that it is for; None is all.
        command: part of the command line of the processes that it is for; empty is all.
    """

    call: str
    code: str = "cudaErrorUnknown"
    is_sticky: bool = False
    device: int | None = None
    after: int = 0
    times: int | None = None
    hang_s: float = 0.0
    holds_gil: bool = False
    pid: int | None = None
    command: str = ""


def plant(folder: Path, *faults: Fault) -> None:
    """Makes these the faults of all processes of a folder; none of them ends all."""
    part = folder / f"{CONTROL}.part{os.getpid()}-{threading.get_ident()}"
    part.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")
    part.replace(folder / CONTROL)


class Faults:
    """The faults as one process meets them. Any thread.

    Args:
        folder: with the control file.
    """

    def __init__(self, folder: Path) -> None:
        self._control = folder / CONTROL
        self._seen: tuple[int, int] | None = None
        self._planted: dict[Fault, int] = {}
        self._own: dict[Fault, int] = {}
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._command = _command()

    def inject(self, *faults: Fault) -> None:
        """Replaces the faults of this process alone."""
        with self._lock:
            self._own = dict.fromkeys(faults, 0)

    def meet(self, call: str, device: int) -> None:
        """Lets a call fail or hang if a fault says so.

        Raises:
            DeviceError: as planted.
        """
        fault = self._due(call, device)
        if fault is None:
            return
        if fault.hang_s:
            self._hang(fault)
        if fault.code:
            raise DeviceError(fault.code, f"simulated {call}", fault.is_sticky)

    def _due(self, call: str, device: int) -> Fault | None:
        with self._lock:
            self._reload()
            for counts in (self._own, self._planted):
                for fault in counts:
                    if self._concerns(fault, call, device):
                        counts[fault] = count = counts[fault] + 1
                        last = None if fault.times is None else fault.after + fault.times
                        if count > fault.after and (last is None or count <= last):
                            return fault
        return None

    def _concerns(self, fault: Fault, call: str, device: int) -> bool:
        return (
            fault.call in (call, ANY)
            and fault.device in (None, device)
            and fault.pid in (None, self._pid)
            and fault.command in self._command
        )

    def _reload(self) -> None:
        try:
            state = os.stat(self._control)
        except FileNotFoundError:
            self._seen, self._planted = None, {}
            return
        seen = (state.st_ino, state.st_mtime_ns)
        if seen != self._seen:
            values = json.loads(self._control.read_text(encoding="utf-8"))
            faults = [Fault(**value) for value in values]
            self._planted = {fault: self._planted.get(fault, 0) for fault in faults}
            self._seen = seen

    def _hang(self, fault: Fault) -> None:
        if fault.holds_gil:
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(fault.hang_s * 1e6)))
            return
        end = time.monotonic() + fault.hang_s
        while time.monotonic() < end:
            time.sleep(_NAP_S)
            with self._lock:
                self._reload()
                if fault not in self._own and fault not in self._planted:
                    return


def _command() -> str:
    raw = Path("/proc/self/cmdline").read_bytes()
    return raw.replace(b"\0", b" ").decode("utf-8", "replace")

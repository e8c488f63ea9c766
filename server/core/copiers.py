"""Every copier: one for host memory, and one for each device whose memory somebody registered.

Purpose: know which copier a pool belongs to, and each one's pieces; have a device's copier started
with the first registration and ended a while after the last one, since its mere presence takes
hundreds of MiB of the device's memory. Their number is bounded, and so is how often one process has
some started. Must not know: how a copier is started, what copies and sends, stores. Runs in: the
loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from protocol.errors import ErrorCode, RequestError
from protocol.layout import CudaIpcMemory, Memory
from server.core.clock import Timers
from server.core.config import SECOND_NS, CoreConfig
from server.core.copies import CopyWindow
from server.core.effects import HOST_COPIER, CopierId, JobId, StartCopier, StopCopier
from server.core.outbox import Outbox
from server.core.peers import Process

MAX_DEVICES = 16
"""Devices that are served at once; those whose copier is ending count."""

STARTS_AT_ONCE = 4
"""A start takes a core for a while, and one of the places. So one process may wait for so many
copiers that do not run, and once more every START_NS; those that came to run are not counted."""

START_NS = 10 * SECOND_NS

IDLE_NS = 30 * SECOND_NS
"""How long a device's copier stays without a pool: as long as an engine takes to start again."""


@dataclass
class DeviceCopier:
    """The copier of one device.

    Attributes:
        device_uuid: 16 bytes.
        num_sessions: sessions whose pool is its.
        timer: when it ends for want of sessions, or 0.
        is_leaving: it was told to end; whoever comes meanwhile waits for the next one.
        awaited_by: processes that came since it was last known whether it runs.
    """

    device_uuid: bytes
    num_sessions: int = 0
    timer: int = 0
    is_leaving: bool = False
    awaited_by: list[Process] = field(default_factory=list)


class Copiers:
    """Windows by copier.

    Args:
        config: settings.
        timers: deadlines.
        outbox: where effects go.

    Attributes:
        windows: each copier's work; the one for host memory is always there.
        devices: copiers of devices.
        starts: how often each was started, as far as it was.
    """

    def __init__(self, config: CoreConfig, timers: Timers, outbox: Outbox) -> None:
        self._config = config
        self._timers = timers
        self._outbox = outbox
        self._jobs: Iterator[int] = count(1)
        self._next = HOST_COPIER + 1
        self._by_uuid: dict[bytes, CopierId] = {}
        self.devices: dict[CopierId, DeviceCopier] = {}
        self.windows = {HOST_COPIER: self._window(HOST_COPIER)}
        self.starts: Counter[CopierId] = Counter()

    def _window(self, copier: CopierId) -> CopyWindow:
        return CopyWindow(copier, self._config.copy_window_bytes, self._outbox, self._jobs)

    # --- sessions -------------------------------------------------------------------------

    def check_room(self, process: Process, memory: Memory | None) -> None:
        """Checks that memory has a copier, or may get one.

        Args:
            process: whose it is.
            memory: of a registration.

        Raises:
            RequestError: LIMIT_EXCEEDED.
        """
        if not isinstance(memory, CudaIpcMemory):
            return
        copier = self._by_uuid.get(memory.device_uuid)
        if copier is not None and self.windows[copier].is_up:
            return
        wait_ns = process.copiers_due_ns - self._timers.clock.now_ns
        if wait_ns > (STARTS_AT_ONCE - 1) * START_NS:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"one process may wait for {STARTS_AT_ONCE} copiers of devices that do not run, "
                f"and for one more {START_NS // SECOND_NS} s later",
                device=memory.device_uuid.hex(),
            )
        if copier is None and len(self.devices) >= MAX_DEVICES:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"at most {MAX_DEVICES} devices are served at once: end the engines of another, "
                f"whose copier goes {IDLE_NS // SECOND_NS} s later",
                device=memory.device_uuid.hex(),
            )

    def join(self, process: Process, memory: Memory | None) -> CopierId:
        """The copier of a new session's memory, which is started if need be.

        Args:
            process: whose it is.
            memory: ``check_room`` had nothing against it.
        """
        if not isinstance(memory, CudaIpcMemory):
            return HOST_COPIER
        copier = self._by_uuid.get(memory.device_uuid)
        if copier is None:
            copier, self._next = CopierId(self._next), self._next + 1
            self._by_uuid[memory.device_uuid] = copier
            self.devices[copier] = DeviceCopier(memory.device_uuid)
            self.windows[copier] = self._window(copier)
            self.windows[copier].is_up = False
            self._outbox.add(StartCopier(copier, memory.device_uuid))
        device = self.devices[copier]
        if not self.windows[copier].is_up:
            since_ns = max(process.copiers_due_ns, self._timers.clock.now_ns)
            process.copiers_due_ns = since_ns + START_NS
            device.awaited_by.append(process)
        self._timers.cancel(device.timer)
        device.timer = 0
        device.num_sessions += 1
        return copier

    def leave(self, copier: CopierId) -> None:
        """A session of a copier is over, and with it its pool."""
        device = self.devices.get(copier)
        if device is None:
            return
        device.num_sessions -= 1
        if not device.num_sessions:
            self._end_later(copier, device)

    def _end_later(self, copier: CopierId, device: DeviceCopier) -> None:
        self._timers.cancel(device.timer)
        device.timer = self._timers.at(
            self._timers.clock.now_ns + IDLE_NS, partial(self.end_if_idle, copier)
        )

    # --- copiers --------------------------------------------------------------------------

    def ready(self, copier: CopierId) -> bool:
        """A copier has started.

        Returns:
            Whether it may be given work.
        """
        window, device = self.windows.get(copier), self.devices.get(copier)
        if window is None or (device is not None and device.is_leaving):
            return False
        window.is_up = True
        self.starts[copier] += 1
        if device is not None:
            for process in device.awaited_by:
                process.copiers_due_ns -= START_NS
            device.awaited_by.clear()
        return True

    def refused(self, copier: CopierId) -> None:
        """A device's copier could not be started; it is given up unless it has sessions."""
        device = self.devices.get(copier)
        if device is not None:
            device.awaited_by.clear()
            self.end_if_idle(copier)

    def end_if_idle(self, copier: CopierId) -> None:
        """Has a device's copier ended unless it has sessions; later if a stuck one still writes."""
        device = self.devices.get(copier)
        if device is None or device.num_sessions or device.is_leaving:
            return
        self._timers.cancel(device.timer)
        device.timer = 0
        if self.windows[copier].stranded:
            self._end_later(copier, device)
            return
        device.is_leaving = True
        self.windows[copier].is_up = False
        self._outbox.add(StopCopier(copier))

    def ended(self, copier: CopierId) -> None:
        """A device's copier is gone for good; if somebody came meanwhile, another is started."""
        device = self.devices.get(copier)
        if device is None:
            return
        device.is_leaving = False
        if device.num_sessions:
            self._outbox.add(StartCopier(copier, device.device_uuid))
            return
        self._timers.cancel(device.timer)
        del self.devices[copier], self.windows[copier], self._by_uuid[device.device_uuid]
        self.starts.pop(copier, None)

    # --- copies ---------------------------------------------------------------------------

    def done(self, job: JobId, error: str | None) -> None:
        """StartCopy ended; jobs that nobody knows (any more) are passed over."""
        for window in self.windows.values():
            if job in window.flying:
                window.done(job, error)
                window.pump()
                return

    @property
    def is_idle(self) -> bool:
        """Whether no piece waits or flies."""
        return all(window.is_idle for window in self.windows.values())

    def figures(self) -> dict[str, int]:
        """Gauges over all copiers."""
        windows = self.windows.values()
        return {
            "copies_in_flight": sum(len(window.flying) for window in windows),
            "copy_bytes_in_flight": sum(window.flying_bytes for window in windows),
            "copiers_stuck": sum(len(window.stranded) for window in windows),
            "copies_stranded": sum(
                len(pieces) for window in windows for pieces in window.stranded.values()
            ),
            "device_copiers": len(self.devices),
        }

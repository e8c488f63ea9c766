"""Maps extents, populates and unmaps them, on a thread of its own.

Populating takes about 0.3 s per GiB and must delay neither heartbeats nor releases, and it must
not hold the GIL: Python's own ``mmap.madvise`` and the unmapping of a populated gigabyte would. So
both go through ctypes, in steps. Where loads are made by a device, an extent is page-locked before
it is reported, with a pause before the next one, and unlocked before it is unmapped.

Must not know: sockets. Runs in: the mapper's thread; the keeper's thread gives it work and takes
its reports.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from adapter.extents import ExtentTable, MappedExtent
from adapter.journal import Journal
from adapter.pinning import Pinner
from protocol import extents as extent_format
from protocol.device.interface import Device
from protocol.errors import KvkeepError
from protocol.ids import ArenaId, Epoch, Fingerprint, SessionId
from protocol.side import ExtentGiven

STEP_BYTES: Final = 16 << 20
"""Populated or unpopulated per system call."""

RETRY_CLOSE_S: Final = 0.1
"""How often to try again to unmap an extent over which somebody still holds an array."""

_MADV_DONTNEED: Final = 4
_MADV_POPULATE_READ: Final = 22


@dataclass(frozen=True)
class Origin:
    """Whose extents a registration reads.

    Attributes:
        epoch: the server.
        arena: its arena.
        session: the registration.
        fingerprint: of its namespace.
    """

    epoch: Epoch
    arena: ArenaId
    session: SessionId
    fingerprint: Fingerprint


@dataclass(frozen=True)
class MapReport:
    """What has become of one extent.

    Attributes:
        origin: for whom.
        extent: which.
        is_mapped: mapped and populated, or unmapped (or never mapped).
    """

    origin: Origin
    extent: int
    is_mapped: bool


class Mapper:
    """The mapping thread and its two queues, bounded by the extents that a server may give."""

    def __init__(
        self,
        table: ExtentTable,
        journal: Journal,
        on_report: Callable[[], None],
        device: Device | None = None,
    ) -> None:
        """Starts nothing.

        Args:
            table: where mapped extents are entered.
            journal: counters.
            on_report: called, on the mapper's thread, when ``take_reports`` has something, or
                something was unmapped.
            device: that makes the loads; None when host code does.
        """
        self._table = table
        self._journal = journal
        self._on_report = on_report
        self._pinner = None if device is None else Pinner(device, journal)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._wanted = threading.Condition()
        self._to_map: deque[tuple[Origin, ExtentGiven, int]] = deque()
        self._mapping: Epoch | None = None
        self._to_unmap: dict[tuple[Epoch, int], Origin] = {}
        self._reports: deque[MapReport] = deque()
        self._look_again = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kvkeep-mapper", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the work at hand; extents to be mapped are dropped."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it has ended.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def map(self, origin: Origin, given: ExtentGiven, fd: int) -> None:
        """Has an extent mapped and populated; reported when done.

        Args:
            origin: for whom.
            given: what the server said about it.
            fd: its descriptor; closed here.
        """
        with self._wanted:
            self._to_map.append((origin, given, fd))
            self._wanted.notify_all()

    def unmap(self, origin: Origin, extent: int) -> None:
        """Has an extent unmapped once nobody uses it; reported when done, mapped or not.

        Args:
            origin: for whom.
            extent: which.
        """
        with self._wanted:
            self._table.take(origin.epoch, extent)
            self._to_unmap[origin.epoch, extent] = origin
            self._look_again = True
            self._wanted.notify_all()

    def kick(self) -> None:
        """Has the thread look for barred extents that became unused. Any thread."""
        with self._wanted:
            self._look_again = True
            self._wanted.notify_all()

    def is_mapping(self, epoch: Epoch) -> bool:
        """Whether an extent of a server is being mapped or waits for it.

        Args:
            epoch: the server.
        """
        with self._wanted:
            return epoch == self._mapping or any(o.epoch == epoch for o, _, _ in self._to_map)

    def take_reports(self) -> list[MapReport]:
        """What was done since the last call."""
        with self._wanted:
            reports = list(self._reports)
            self._reports.clear()
            return reports

    def _run(self) -> None:
        is_waiting = False
        if self._pinner is not None:
            self._pinner.enter()
        while True:
            with self._wanted:
                pause_s = self._pause_s() if self._to_map else None
                if pause_s != 0 and not (self._look_again or self._stopping):
                    retry_s = RETRY_CLOSE_S if is_waiting else None
                    times = [wait_s for wait_s in (pause_s, retry_s) if wait_s is not None]
                    self._wanted.wait(min(times, default=None))
                self._look_again = False
                is_due = self._stopping or self._pause_s() == 0
                job = self._to_map.popleft() if self._to_map and is_due else None
                self._mapping = job[0].epoch if job is not None else None
                is_last_turn = self._stopping
            if job is not None and is_last_turn:
                os.close(job[2])
            try:
                if job is not None and not is_last_turn:
                    self._map(*job)
                self._mapping = None
                is_waiting = self._close_idle()
            except Exception as error:  # noqa: BLE001 - without this thread no extent comes or goes
                self._journal.report("mapper_faults", f"the mapper failed: {error!r}")
                is_waiting, self._mapping = True, None
            if is_last_turn and job is None:
                return

    def _pause_s(self) -> float:
        """How long no extent is to be mapped, in seconds."""
        if self._pinner is None:
            return 0.0
        return max(0.0, self._pinner.not_before_s - time.monotonic())

    def _map(self, origin: Origin, given: ExtentGiven, fd: int) -> None:
        try:
            if self._table.is_retired(origin.epoch):
                return
            if self._table.get(given.extent, origin.epoch) is not None:
                self._mapped(origin, given)  # for a stay before, while this one waited its turn
                return
            extent = self._open(origin, given, fd)
        except (KvkeepError, OSError, ValueError) as error:
            self._journal.report(
                "extents_not_mapped", f"extent {given.extent} could not be mapped: {error}"
            )
            return
        finally:
            os.close(fd)
        if not self._populate(extent) or not self._pin(origin, extent):
            self._unpopulate(extent)
            extent.close()
            return
        with self._wanted:
            # Taken back while it was populated: then the unmapping below reports it.
            extent.is_taken = (origin.epoch, given.extent) in self._to_unmap
            self._table.add(extent)
        self._journal.count("extents_mapped")
        self._mapped(origin, given)

    def _mapped(self, origin: Origin, given: ExtentGiven) -> None:
        with self._wanted:
            if (origin.epoch, given.extent) not in self._to_unmap:
                self._reports.append(MapReport(origin, given.extent, is_mapped=True))
        self._on_report()

    def _open(self, origin: Origin, given: ExtentGiven, fd: int) -> MappedExtent:
        """Maps a file whose header agrees with what was announced."""
        header = os.pread(fd, extent_format.HEADER_DTYPE.itemsize, 0)
        geometry, arena = extent_format.unpack_header(header)
        said = (
            given.extent,
            given.shard,
            given.num_slots,
            given.slot_bytes,
            given.payload_bytes,
            given.data_offset_bytes,
            given.file_bytes,
        )
        found = (
            geometry.extent,
            geometry.shard,
            geometry.num_slots,
            geometry.slot_bytes,
            geometry.payload_bytes,
            geometry.data_offset_bytes,
            geometry.file_bytes,
        )
        if said != found or arena != origin.arena or geometry.fingerprint != origin.fingerprint:
            raise ValueError("its header is not the announced extent's")
        mapping = mmap.mmap(fd, geometry.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        return MappedExtent(origin.epoch, geometry, mapping)

    def _populate(self, extent: MappedExtent) -> bool:
        """Backs the whole mapping with page table entries; False when the file does not."""
        address, num_bytes = extent.view.ctypes.data, extent.view.size
        for start in range(0, num_bytes, STEP_BYTES):
            if self._stopping:
                return False
            length = min(STEP_BYTES, num_bytes - start)
            if self._libc.madvise(address + start, length, _MADV_POPULATE_READ) == 0:
                continue
            number = ctypes.get_errno()
            if number == errno.EINVAL:  # kernels before 5.14: touch each page instead
                int(np.max(extent.view[start : start + length : mmap.PAGESIZE]))
                continue
            self._journal.report(
                "extents_not_mapped",
                f"extent {extent.geometry.extent} could not be populated: {os.strerror(number)}",
            )
            return False
        return True

    def _pin(self, origin: Origin, extent: MappedExtent) -> bool:
        """Has the device read it, if one makes the loads; False when that is in vain."""
        if self._pinner is None:
            return True
        with self._wanted:
            # Taken back, or its server left, while it was populated: not worth the driver's time.
            is_in_vain = (origin.epoch, extent.geometry.extent) in self._to_unmap
        is_in_vain = is_in_vain or self._stopping or self._table.is_retired(origin.epoch)
        return not is_in_vain and self._pinner.pin(extent)

    def _close_idle(self) -> bool:
        """Unmaps what can be. True when more can be soon: arrays or a pause keep it mapped."""
        is_waiting = has_closed = False
        for extent in self._table.idle_taken():
            if extent.is_pinned and self._pinner is not None:
                if time.monotonic() < self._pinner.keep_until_s and not self._stopping:
                    is_waiting = True
                    continue
                self._pinner.unpin(extent)
            self._unpopulate(extent)
            if extent.close():
                self._table.remove(extent)
                self._journal.count("extents_unmapped")
                has_closed = True
            else:
                is_waiting = True
        with self._wanted:
            pending_maps = {(origin.epoch, given.extent) for origin, given, _ in self._to_map}
            for (epoch, number), origin in list(self._to_unmap.items()):
                if (epoch, number) in pending_maps or self._table.knows(epoch, number):
                    continue
                del self._to_unmap[epoch, number]
                self._reports.append(MapReport(origin, number, is_mapped=False))
            has_reports = bool(self._reports)
        if has_reports or has_closed:
            self._on_report()
        return is_waiting

    def _unpopulate(self, extent: MappedExtent) -> None:
        # Drops the page table entries in steps, so that the munmap that follows, which Python
        # makes with the GIL held, has nothing left to do.
        address, num_bytes = extent.view.ctypes.data, extent.view.size
        for start in range(0, num_bytes, STEP_BYTES):
            length = min(STEP_BYTES, num_bytes - start)
            self._libc.madvise(address + start, length, _MADV_DONTNEED)

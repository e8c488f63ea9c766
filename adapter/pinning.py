"""Page-locks mapped extents, so that the engine's device can read them directly.

Page-locking is work that the driver does for one caller at a time, and it holds up launches of
everybody meanwhile (fault P18). So extents are locked one after the other, read-only where the
device can, and after each there is a pause as long as the locking took; giving a lock up is such
work, too. They come in the order in which the server gave them, most used first.

Must not know: sockets, who reads. Runs in: the mapper's thread, which has no duty that cannot wait.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

from adapter.extents import MappedExtent
from adapter.journal import Journal
from protocol.device.interface import Device, DeviceError

LONGEST_PAUSE_S: Final = 0.25
"""Between two extents. One of 1 GiB takes a few tenths of a second to lock."""

_MIB: Final = 1 << 20


class Pinner:
    """Locks for one device.

    Attributes:
        not_before_s: the next extent is not to be locked before, on the monotonic clock.
        keep_until_s: the next lock is not to be given up before. Only giving one up sets it, since
            what is to be unmapped is waited for.
    """

    def __init__(self, device: Device, journal: Journal) -> None:
        """Makes no use of the device yet.

        Args:
            device: that loads are made by.
            journal: counters.
        """
        self.not_before_s = self.keep_until_s = 0.0
        self._device = device
        self._journal = journal

    def enter(self) -> None:
        """Makes the device the calling thread's; called first in the mapper's thread."""
        try:
            self._device.bind()
        except DeviceError as error:
            self._journal.report("device_errors", f"nothing can be page-locked: {error}")

    def pin(self, extent: MappedExtent) -> bool:
        """Locks a whole extent.

        Args:
            extent: mapped and populated, known to nobody else yet.

        Returns:
            False when it cannot be locked: then nothing can be loaded from it.
        """
        view = extent.view
        num_bytes = -(-view.size // mmap.PAGESIZE) * mmap.PAGESIZE
        begin_s = time.monotonic()
        try:
            pinned = self._device.pin(view.ctypes.data, num_bytes)
        except DeviceError as error:
            self._pause(time.monotonic() - begin_s)
            self._journal.report(
                "extents_not_pinned",
                f"extent {extent.geometry.extent} of {view.size // _MIB} MiB could not be "
                f"page-locked, so nothing of it is loaded: {error}; is the limit of locked memory "
                "too low (ulimit -l, in a container --ulimit memlock=-1)? `python -m server "
                "doctor` tells",
            )
            return False
        taken_s = time.monotonic() - begin_s
        self._pause(taken_s)
        extent.pinned_by(pinned)
        self._journal.count("extents_pinned")
        self._journal.count("extent_pin_ms", round(taken_s * 1000))
        self._journal.count("extent_pin_mib", num_bytes // _MIB)
        if not pinned.is_read_only:
            self._journal.count("extents_pinned_writable")
        return True

    def unpin(self, extent: MappedExtent) -> None:
        """Gives an extent's lock up.

        Args:
            extent: that nothing is loaded from any more.
        """
        begin_s = time.monotonic()
        extent.unpin()
        self._pause(time.monotonic() - begin_s)
        self.keep_until_s = self.not_before_s
        self._journal.count("extents_unpinned")

    def _pause(self, taken_s: float) -> None:
        self.not_before_s = time.monotonic() + min(taken_s, LONGEST_PAUSE_S)

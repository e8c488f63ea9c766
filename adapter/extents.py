"""Extents mapped into this process, read-only, by server epoch and extent id.

An extent stays mapped while a load uses it, whatever the server says meanwhile; those of a server
that is gone stay until none of its offers is open any more and nobody uses them (fault P01). Where
loads are made by a device, an extent is page-locked for it before it is entered here, and as long
as it is mapped (fault P18). Extent ids repeat from one arena to the next, so the epoch is part of
the name.

Must not know: sockets, who evicts. Any thread may hold extents; the mapper's thread adds and
closes them.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import DeviceError, Pinned
from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES, ExtentGeometry
from protocol.ids import Epoch

_MAX_RETIRED: Final = 64


class MappedExtent:
    """One extent file in this process's memory.

    Attributes:
        epoch: the server that gave it.
        geometry: how the file is cut.
        view: uint8[file_bytes], read-only.
        generations: uint64[num_slots], read-only, strided over the records: what the server
            writes shows here.
    """

    def __init__(self, epoch: Epoch, geometry: ExtentGeometry, mapping: mmap.mmap) -> None:
        """Wraps a read-only mapping of the whole file; the extent owns it from now on."""
        self.epoch = epoch
        self.geometry = geometry
        self.view: NDArray[np.uint8] = np.frombuffer(
            mapping, dtype=np.uint8, count=geometry.file_bytes
        )
        records: NDArray[Any] = np.frombuffer(
            mapping, RECORD_DTYPE, geometry.num_slots, RECORDS_OFFSET_BYTES
        )
        self.generations: NDArray[np.uint64] = records["generation"]
        self.num_users = 0
        self.is_taken = False
        self._mapping: mmap.mmap | None = mapping
        self._unpin: weakref.finalize[..., MappedExtent] | None = None

    @property
    def num_slots(self) -> int:
        """Slots in the file."""
        return self.geometry.num_slots

    def generation_of(self, slot: int) -> int:
        """The generation that a slot carries now.

        Args:
            slot: 0 <= slot < num_slots.

        Raises:
            IndexError: there is no such slot.
        """
        if not 0 <= slot < self.geometry.num_slots:
            raise IndexError(f"slot {slot} is not within 0..{self.geometry.num_slots - 1}")
        return int(self.generations[slot])

    @property
    def is_pinned(self) -> bool:
        """Whether a device may read it."""
        return self._unpin is not None and self._unpin.alive

    def pinned_by(self, pinned: Pinned) -> None:
        """Takes over a page-lock on the whole mapping, which ends before the mapping does.

        Args:
            pinned: of exactly this extent's bytes.
        """
        # Also when the extent is forgotten without a close; not at the end of the process, which
        # ends the lock by itself and whose driver may be gone by then.
        self._unpin = weakref.finalize(self, _end_pin, pinned, self._mapping)
        self._unpin.atexit = False

    def unpin(self) -> None:
        """Ends the page-lock; nobody uses the extent. Idempotent. May take long."""
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()

    def close(self) -> bool:
        """Unmaps the file. The mapper calls it, once nobody uses the extent.

        Returns:
            False when somebody still holds an array over it; try again later.
        """
        if self._mapping is None:
            return True
        self.unpin()
        self.view = np.empty(0, dtype=np.uint8)
        self.generations = np.empty(0, dtype=np.uint64)
        try:
            self._mapping.close()
        except BufferError:
            return False
        self._mapping = None
        return True


def _end_pin(pinned: Pinned, mapping: object) -> None:
    # The mapping comes along as an argument, so that it outlives the lock.
    del mapping
    with contextlib.suppress(DeviceError):  # a device that failed holds no lock that matters
        pinned.close()


class ExtentTable:
    """All mapped extents of this process."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        """Starts empty.

        Args:
            on_idle: called, from any thread, when an extent that is to be unmapped has become
                unused.
        """
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._extents: dict[tuple[Epoch, int], MappedExtent] = {}
        self._current: Epoch | None = None
        self._retired: deque[Epoch] = deque(maxlen=_MAX_RETIRED)

    def __len__(self) -> int:
        """Extents mapped now, those about to go included."""
        return len(self._extents)

    def get(self, extent_id: int, epoch: Epoch | None = None) -> MappedExtent | None:
        """Looks at an extent without holding it: its arrays may become empty at any time.

        Args:
            extent_id: which.
            epoch: of the RETRIEVE that named it; None for the newest registration's.

        Returns:
            The extent, or None when it is not mapped or is being taken back.
        """
        with self._lock:
            wanted = self._current if epoch is None else epoch
            extent = None if wanted is None else self._extents.get((wanted, extent_id))
            return None if extent is None or extent.is_taken else extent

    @contextmanager
    def hold(self, epoch: Epoch, extent_ids: Iterable[int]) -> Iterator[dict[int, MappedExtent]]:
        """Keeps extents mapped for the length of a ``with`` block.

        Args:
            epoch: ``Joined.epoch`` at the time of the RETRIEVE that named them.
            extent_ids: which.

        Yields:
            Extents by id; ids that are not mapped, or are being taken back, are left out.
        """
        with self._lock:
            found = {number: self._extents.get((epoch, number)) for number in extent_ids}
            held = {n: e for n, e in found.items() if e is not None and not e.is_taken}
            for extent in held.values():
                extent.num_users += 1
        try:
            yield held
        finally:
            with self._lock:
                for extent in held.values():
                    extent.num_users -= 1
                idle = any(e.is_taken and e.num_users == 0 for e in held.values())
            if idle:
                self._on_idle()

    def set_current(self, epoch: Epoch) -> None:
        """Names the epoch that ``get`` means by default. The keeper calls it.

        Args:
            epoch: of the newest registration.
        """
        with self._lock:
            self._current = epoch
            if epoch in self._retired:
                self._retired.remove(epoch)

    def has(self, epoch: Epoch) -> bool:
        """Whether anything of a server is mapped, be it barred from further use or not."""
        with self._lock:
            return any(extent.epoch == epoch for extent in self._extents.values())

    def is_used(self, epoch: Epoch) -> bool:
        """Whether somebody holds an extent of a server."""
        with self._lock:
            return any(e.num_users for e in self._extents.values() if e.epoch == epoch)

    def retire(self, epoch: Epoch) -> None:
        """Bars all extents of a server from further use, those too that are being mapped.

        Args:
            epoch: of a server none of whose offers is open.
        """
        with self._lock:
            self._retired.append(epoch)
            for extent in self._extents.values():
                extent.is_taken |= extent.epoch == epoch

    def is_retired(self, epoch: Epoch) -> bool:
        """Whether extents of a server are not to be mapped any more."""
        with self._lock:
            return epoch in self._retired

    def add(self, extent: MappedExtent) -> None:
        """Enters a mapped extent. The mapper calls it.

        Args:
            extent: not entered yet.
        """
        with self._lock:
            extent.is_taken |= extent.epoch in self._retired
            self._extents[extent.epoch, extent.geometry.extent] = extent

    def knows(self, epoch: Epoch, extent_id: int) -> bool:
        """Whether an extent is mapped, be it barred from further use or not."""
        with self._lock:
            return (epoch, extent_id) in self._extents

    def take(self, epoch: Epoch, extent_id: int) -> bool:
        """Bars an extent from further use; it is unmapped when its last user is gone.

        Args:
            epoch: of the server that wants it back.
            extent_id: which.

        Returns:
            Whether it was mapped.
        """
        with self._lock:
            extent = self._extents.get((epoch, extent_id))
            if extent is None:
                return False
            extent.is_taken = True
            return True

    def take_all(self) -> int:
        """Bars everything from further use: nothing will be loaded any more.

        Returns:
            How many were barred now.
        """
        with self._lock:
            others = [extent for extent in self._extents.values() if not extent.is_taken]
            for extent in others:
                extent.is_taken = True
            return len(others)

    def idle_taken(self) -> list[MappedExtent]:
        """Barred extents that nobody uses; the mapper closes them and then calls ``remove``."""
        with self._lock:
            return [e for e in self._extents.values() if e.is_taken and e.num_users == 0]

    def remove(self, extent: MappedExtent) -> None:
        """Forgets a closed extent. The mapper calls it.

        Args:
            extent: closed.
        """
        with self._lock:
            self._extents.pop((extent.epoch, extent.geometry.extent), None)

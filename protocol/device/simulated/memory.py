"""What this process's addresses are to the simulated devices, and who is using them just now.

A copy holds both its ranges while it runs, so memory is never taken away under one; a copy that
comes to memory that is gone is an illegal access, as on a device.

Must not know: files, streams. Any thread.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import DeviceError, MemoryKind

_LONGEST_PIECE_S = 10.0
"""Bounds the wait for a piece of a copy, which takes microseconds."""


@dataclass(eq=False)
class Range:
    """Bytes of this process that devices know.

    Attributes:
        base: first address.
        num_bytes: length.
        kind: of the memory.
        owner: number of the device whose memory it is; -1 for host memory.
        seen_by: number of the device it was opened on, where that is another one; else ``owner``.
        is_writable: whether a device may write it.
        content: keeps the mapping alive.
    """

    base: int
    num_bytes: int
    kind: MemoryKind
    owner: int = -1
    seen_by: int = -1
    is_writable: bool = True
    content: NDArray[np.uint8] | None = None
    num_users: int = field(default=0, repr=False)

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.base + self.num_bytes

    @property
    def is_host(self) -> bool:
        """Whether it is page-locked host memory."""
        return self.kind is MemoryKind.HOST


class Memory:
    """All ranges of the process."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._ranges: list[Range] = []
        self._changed = threading.Condition()

    def add(self, new: Range) -> None:
        """Makes a range known.

        Raises:
            DeviceError: part of it is known already.
        """
        with self._changed:
            at = bisect.bisect_right(self._bases, new.base)
            before = self._ranges[at - 1] if at else None
            behind = self._ranges[at] if at < len(self._ranges) else None
            if (before and before.end > new.base) or (behind and behind.base < new.end):
                raise DeviceError("cudaErrorHostMemoryAlreadyRegistered", "simulated memory")
            self._bases.insert(at, new.base)
            self._ranges.insert(at, new)

    def remove(self, old: Range) -> bool:
        """Makes a range unknown, after the piece of a copy that is using it just now.

        Returns:
            whether it was known.
        """
        with self._changed:
            at = bisect.bisect_left(self._bases, old.base)
            if at == len(self._ranges) or self._ranges[at] is not old:
                return False
            del self._bases[at], self._ranges[at]
            self._changed.wait_for(lambda: old.num_users == 0, _LONGEST_PIECE_S)
            return True

    def find(self, address: int, num_bytes: int = 1) -> Range | None:
        """The range that all these bytes lie in; None if there is none."""
        with self._changed:
            return self._find(address, num_bytes)

    def find_all(
        self, addresses: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[list[Range], NDArray[np.bool_]]:
        """The ranges that many pieces lie in.

        Args:
            addresses: int64[n].
            sizes: int64[n], bytes.

        Returns:
            each range that some piece begins in, once; bool[n], whether the piece lies in one.
        """
        with self._changed:
            if not self._ranges:
                return [], np.zeros(addresses.shape, dtype=np.bool_)
            at = np.searchsorted(self._bases, addresses, side="right") - 1
            ends = np.array([one.end for one in self._ranges], dtype=np.int64)
            is_inside = (at >= 0) & (addresses + sizes <= ends[at])
            return [self._ranges[index] for index in np.unique(at[is_inside])], is_inside

    def ranges(self) -> list[Range]:
        """All, by address."""
        with self._changed:
            return list(self._ranges)

    @contextmanager
    def use(self, target: int, source: int, num_bytes: int) -> Iterator[None]:
        """Holds what a piece of a copy touches.

        Raises:
            DeviceError: some of it is not known (any more).
        """
        with self._changed:
            used = [self._find(address, num_bytes) for address in (target, source)]
            if None in used:
                code = "cudaErrorIllegalAddress"
                raise DeviceError(code, "simulated copy of memory that is gone", True)
            held = [one for one in used if one is not None]
            for one in held:
                one.num_users += 1
        try:
            yield
        finally:
            with self._changed:
                for one in held:
                    one.num_users -= 1
                self._changed.notify_all()

    def _find(self, address: int, num_bytes: int) -> Range | None:
        at = bisect.bisect_right(self._bases, address)
        if at and self._ranges[at - 1].end >= address + num_bytes:
            return self._ranges[at - 1]
        return None

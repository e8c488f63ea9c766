"""One segment file and what is known of its slots.

Purpose: fixed slots of one size, behind each other in one preallocated file. What is kept in
memory is one row for each slot in a few arrays, 53 bytes, not an object. Must not know: which
segments there are, what to evict. Runs in: the porter; the catalog's lock guards it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from server.tiers.disk.files import BLOCK_BYTES, Files, open_direct
from server.tiers.disk.plan import NAME_BYTES

MAX_SLOTS = 1 << 24
"""Of one segment: with its segment's number a slot's fits into one cell of the table of names."""


class State(IntEnum):
    """Of a slot."""

    FREE = 0
    WRITING = 1
    USED = 2
    DOOMED = 3  # forgotten while somebody reads it


@dataclass(eq=False)
class Segment:
    """One file.

    Attributes:
        number: never used twice in one folder.
        slot_bytes: header block and room.
        count: slots.
        fd: open for reading and writing.
        is_direct: whether the page cache is passed by.
        path: of the file.
        names: NAME_BYTES for each slot, of what is in it.
        stamps: uint64[count], the clock at the last use.
        uses: uint32[count].
        states: uint8[count] of State.
        groups: uint32[count], whose each is: see ``server.tiers.disk.shares``.
        pins: readers by slot, of slots that have any.
        busy: reads and writes under way; it is not removed before they are over.
        used: slots in the state USED.
        is_dirty: written since the last sync.
    """

    number: int
    slot_bytes: int
    count: int
    fd: int
    is_direct: bool
    path: str
    names: bytearray = field(init=False)
    stamps: NDArray[np.uint64] = field(init=False)
    uses: NDArray[np.uint32] = field(init=False)
    states: NDArray[np.uint8] = field(init=False)
    groups: NDArray[np.uint32] = field(init=False)
    pins: dict[int, int] = field(default_factory=dict)
    busy: int = 0
    used: int = 0
    is_dirty: bool = False
    _fresh: int = 0
    _freed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = bytearray(NAME_BYTES * self.count)
        self.stamps = np.zeros(self.count, np.uint64)
        self.uses = np.zeros(self.count, np.uint32)
        self.states = np.zeros(self.count, np.uint8)
        self.groups = np.zeros(self.count, np.uint32)

    @property
    def length(self) -> int:
        """Bytes of the file."""
        return self.count * self.slot_bytes

    @property
    def has_free(self) -> bool:
        """Whether a slot can be taken."""
        return bool(self._freed) or self._fresh < self.count

    def offset(self, slot: int) -> int:
        """Of a slot's header block in the file."""
        return slot * self.slot_bytes

    def name(self, slot: int) -> bytes:
        """Of what is, or was, in a slot."""
        return bytes(self.names[slot * NAME_BYTES : (slot + 1) * NAME_BYTES])

    def used_names(self) -> list[bytes]:
        """Of all that is in it."""
        return [self.name(slot) for slot in np.flatnonzero(self.states == State.USED).tolist()]

    def empty(self) -> None:
        """All slots are free again; none is read or written."""
        self.states[:] = State.FREE
        self.used, self._fresh, self._freed = 0, 0, []

    def take(self) -> int:
        """A free slot, now WRITING."""
        if self._freed:
            slot = self._freed.pop()
        else:
            slot, self._fresh = self._fresh, self._fresh + 1
        self.states[slot] = State.WRITING
        return slot

    def free(self, slot: int) -> None:
        """Gives a slot back that nobody reads or writes."""
        self.states[slot] = State.FREE
        self._freed.append(slot)

    def adopt(
        self,
        slots: NDArray[np.int64],
        names: NDArray[np.uint8],
        stamps: NDArray[np.uint64],
        uses: NDArray[np.uint32],
        groups: NDArray[np.uint32],
    ) -> None:
        """Takes over what an index says, some of it at a time, before any slot is taken.

        Args:
            slots: int64[n], free, each once and inside the file.
            names: uint8[n, NAME_BYTES].
            stamps: uint64[n].
            uses: uint32[n].
            groups: uint32[n].
        """
        np.frombuffer(self.names, np.uint8).reshape(-1, NAME_BYTES)[slots] = names
        self.stamps[slots], self.uses[slots], self.states[slots] = stamps, uses, State.USED
        self.groups[slots] = groups
        self.used += len(slots)

    def adopted(self) -> None:
        """All that the index says was taken over: what is left is free."""
        self._fresh = self.count
        self._freed = np.flatnonzero(self.states == State.FREE)[::-1].tolist()


def file_name(number: int, slot_bytes: int) -> str:
    """Of a segment's file."""
    return f"{number:08x}-{slot_bytes}"


def parse_file_name(name: str) -> tuple[int, int] | None:
    """Number and slot length in a file's name; None for a file that is no segment."""
    number, dash, length = name.partition("-")
    if not dash or len(number) != 8 or not length.isdecimal():
        return None
    try:
        parsed = int(number, 16), int(length)
    except ValueError:
        return None
    is_ours = file_name(*parsed) == name and parsed[1] % BLOCK_BYTES == 0
    return parsed if is_ours and parsed[1] >= 2 * BLOCK_BYTES else None


def create(files: Files, folder: str, number: int, slot_bytes: int, count: int) -> Segment:
    """Makes a segment's file with all its blocks.

    Args:
        files: the system calls.
        folder: of segments.
        number: not used before.
        slot_bytes: a multiple of BLOCK_BYTES.
        count: slots.

    Raises:
        OSError: it cannot be made; nothing of it is left.
    """
    path = os.path.join(folder, file_name(number, slot_bytes))
    fd, is_direct = open_direct(files, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        files.allocate(fd, count * slot_bytes)
    except OSError:
        files.close(fd)
        files.remove(path)
        raise
    return Segment(number, slot_bytes, count, fd, is_direct, path)


def reopen(files: Files, folder: str, name: str) -> Segment | None:
    """Opens a segment of an earlier run.

    Args:
        files: the system calls.
        folder: of segments.
        name: of the file.

    Returns:
        The segment with the slots that are in the file as it is now, all of them free; None for a
        file that is no segment.

    Raises:
        OSError: it cannot be opened.
    """
    parsed = parse_file_name(name)
    if parsed is None:
        return None
    number, slot_bytes = parsed
    path = os.path.join(folder, name)
    count = min(MAX_SLOTS, files.stat(path).st_size // slot_bytes)
    fd, is_direct = open_direct(files, path, os.O_RDWR)
    return Segment(number, slot_bytes, count, fd, is_direct, path)

"""L1's extents as a porter has them mapped, and the parts of jobs that lie in them.

Purpose: slots become views of bytes only within the bounds of their extent; an extent is unmapped
after the last job that touches it. Must not know: sockets, who asks, what a tier does. Runs in: a
porter's main thread, ``parts`` in its worker threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES
from protocol.ids import ID_BYTES
from server.copier.mappings import Mapping, Mappings
from server.porter.wire import Command
from server.tiers.interface import HEADER_BYTES, Name, Part, Tier

_PAGE_BYTES = 4096
_SALT_AT = sum(
    RECORD_DTYPE[at].itemsize for at in range((RECORD_DTYPE.names or ()).index("tenant"))
)
"""Of the field in a record, whose first one is the key."""
_NO_SALT = bytes(ID_BYTES)


class Memory:
    """Extents of one porter.

    Args:
        tier: told of memory that comes and goes.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._mappings = Mappings()
        self._uses: dict[int, int] = {}
        self._leaving: list[int] = []

    @property
    def is_cold(self) -> bool:
        """Whether something still wants to be populated."""
        return self._mappings.is_cold

    def populate_step(self) -> None:
        """Fills in the next stretch of page tables; some milliseconds."""
        self._mappings.populate_step()

    def map_extent(self, command: Command, fd: int) -> None:
        """Maps an extent writable and tells the tier of it.

        Args:
            command: its number, length and first byte.
            fd: descriptor, closed by the caller.

        Raises:
            OSError: it cannot be mapped. What the tier raises comes through; it is not mapped then.
        """
        number = command.number
        os.fstat(fd)  # without a descriptor, memory of nobody's would be mapped
        self._mappings.map_extent(number, fd, command.size_bytes, command.offset_bytes)
        try:
            self._tier.register(*self._place(number))
        except BaseException:
            self._mappings.unmap_extent(number)
            raise

    def unmap_extent(self, number: int) -> None:
        """Has an extent unmapped once no job touches it; ``unmapped`` says when."""
        self._leaving.append(number)

    def unmapped(self) -> list[int]:
        """Unmaps what is to go and is not touched any more.

        Returns:
            Those that are gone now.
        """
        gone = [number for number in self._leaving if number not in self._uses]
        for number in gone:
            self._leaving.remove(number)
            place = self._place(number)
            try:
                if place[1]:
                    self._tier.unregister(*place)
            finally:
                self._mappings.unmap_extent(number)
        return gone

    def hold(self, parts: NDArray[np.void]) -> list[int]:
        """Keeps the extents of a job mapped until ``release``.

        Args:
            parts: PART_DTYPE[n].

        Returns:
            For ``release``.
        """
        numbers: list[int] = np.unique(parts["extent"]).tolist()
        held = [number for number in numbers if self._mappings.extent(number) is not None]
        for number in held:
            self._uses[number] = self._uses.get(number, 0) + 1
        return held

    def release(self, held: Sequence[int]) -> None:
        """A job has ended, and nothing of it touches memory any more."""
        for number in held:
            self._uses[number] -= 1
            if not self._uses[number]:
                del self._uses[number]

    def parts(self, fingerprint: bytes, rows: NDArray[np.void]) -> list[Part | None]:
        """Views of slots, with room for headers.

        Args:
            fingerprint: of the namespace.
            rows: PART_DTYPE[n] of a job that holds its extents.

        Returns:
            A part for each row; None for one that does not lie in an extent that is mapped.
        """
        headers = memoryview(bytearray(HEADER_BYTES * len(rows)))
        return [
            self._part(fingerprint, row, headers[HEADER_BYTES * at : HEADER_BYTES * (at + 1)])
            for at, row in enumerate(rows)
        ]

    def _part(self, fingerprint: bytes, row: np.void, header: memoryview) -> Part | None:
        mapping = self._mappings.extent(int(row["extent"]))
        offset, length, room = int(row["offset"]), int(row["length"]), int(row["room"])
        if mapping is None or not _fits(mapping, offset, length, room):
            return None
        return Part(
            name=Name(fingerprint, row["key"].tobytes(), int(row["shard"])),
            header=header,
            room=mapping.view.data[offset : offset + room],
            payload_bytes=length,
            address=mapping.view.ctypes.data + offset,
            heat=int(row["heat"]),
            salt=_salt(mapping, row, offset, room),
        )

    def _place(self, number: int) -> tuple[int, int]:
        """Address and length of an extent, zeros for one that is not mapped."""
        mapping = self._mappings.extent(number)
        return (0, 0) if mapping is None else (mapping.view.ctypes.data, mapping.view.size)


def _salt(mapping: Mapping, row: np.void, offset: int, room: int) -> bytes:
    """Under which salt a slot's chunk was stored first, as its record says; empty for none.

    The slot is pinned while it is written to a tier, so nobody changes its record.
    """
    slot = (offset - mapping.first_byte) // room
    begin = RECORDS_OFFSET_BYTES + slot * RECORD_DTYPE.itemsize
    if begin + RECORD_DTYPE.itemsize > mapping.first_byte:
        return b""
    data = mapping.view.data
    salt = bytes(data[begin + _SALT_AT : begin + _SALT_AT + ID_BYTES])
    if salt == _NO_SALT or data[begin : begin + ID_BYTES] != row["key"].tobytes():
        return b""
    return salt


def _fits(mapping: Mapping, offset: int, length: int, room: int) -> bool:
    """Whether a slot is one: a porter that trusted an offset would write over other slots."""
    return (
        mapping.first_byte <= offset
        and offset + room <= mapping.view.size
        and length <= room
        and offset % _PAGE_BYTES == 0
        and room % _PAGE_BYTES == 0
    )

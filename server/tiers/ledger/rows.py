"""What a ledger knows of one value, and whose it is.

Must not know: files, stores. Runs in: the porter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from protocol.ids import ID_BYTES
from server.tiers.interface import Name

NAME = Struct(">16s16sI")
"""Fingerprint, key and shard, as a value is found in the book."""

ROW = Struct("<QQQ16s")

Tenant = tuple[bool, bytes]
"""Whether it is a salt, and the 16 bytes that name it."""

_NO_SALT = bytes(ID_BYTES)


class Row(NamedTuple):
    """Of one value that may be in the store.

    Attributes:
        num_bytes: of it in the store, its header included.
        stamp: the ledger's clock at its last use.
        ended: the same when a write of it was last known to have ended; 0 while that is not known.
        salt: digest of the salt under which it was stored first, or empty.
    """

    num_bytes: int
    stamp: int
    ended: int
    salt: bytes = b""

    @property
    def is_open(self) -> bool:
        """Whether a write of it is under way, or ended as nobody knows: it may still come."""
        return not self.ended


Change = tuple[bytes, Row | None]
"""What a packed name's row is from now on; None for none."""


class Wanted(NamedTuple):
    """A value that is to be written.

    Attributes:
        name: packed.
        num_bytes: in the store.
        salt: digest of the salt under which it was stored first, or empty.
    """

    name: bytes
    num_bytes: int
    salt: bytes


@dataclass
class Taken:
    """What became of values that are to be written.

    Attributes:
        entered: numbers of those that are in the ledger: they may be written now.
        waiting: of those that find no room before others have gone.
        victims: names of such others, which nobody writes until they are ``removed``, or
            ``notes.left`` says that they stay.
        new: names of those that were not in the ledger before.
    """

    entered: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    victims: list[bytes] = field(default_factory=list)
    new: set[bytes] = field(default_factory=set)


def pack_name(name: Name) -> bytes:
    """A name as a book has it."""
    return NAME.pack(*name)


def unpack_name(packed: bytes) -> Name:
    """What ``pack_name`` packed."""
    return Name(*NAME.unpack(packed))


def pack_row(row: Row) -> bytes:
    """A row as files have it."""
    return ROW.pack(row.num_bytes, row.stamp, row.ended, row.salt or _NO_SALT)


def unpack_row(packed: bytes) -> Row:
    """What ``pack_row`` packed.

    Raises:
        struct.error: it is none.
    """
    num_bytes, stamp, ended, salt = ROW.unpack(packed)
    return Row(num_bytes, stamp, ended, b"" if salt == _NO_SALT else salt)


def tenants_of(packed: bytes, salt: bytes) -> tuple[Tenant, ...]:
    """Whose a value is: its namespace's, and its salt's if it has one.

    Args:
        packed: its name.
        salt: digest, or empty.
    """
    space = (False, packed[:ID_BYTES])
    return (space, (True, salt)) if salt else (space,)

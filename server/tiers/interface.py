"""What a tier must be able to do.

Purpose: the seam between the porter, which knows L1's memory, and the engines, which know disks and
stores. Every error is a status, never an exception that ends a batch; a tier is not believed: what
it hands back is compared with its header (``server.tiers.values``) before anybody learns of it.
Must not know: any engine. Runs in: the porter, on its worker threads, several calls at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from server.core.tiers.parts import Share, Status

__all__ = [
    "HEADER_BYTES",
    "Health",
    "Lister",
    "Moving",
    "Name",
    "Part",
    "Share",
    "Sharing",
    "Status",
    "Tier",
    "TierError",
    "Touching",
]

HEADER_BYTES = 128
"""Of our own header before every value."""


class Name(NamedTuple):
    """What a value is found by.

    Attributes:
        fingerprint: 16 bytes, of the namespace.
        key: 16 bytes, of the chunk.
        shard: which part of the chunk.
    """

    fingerprint: bytes
    key: bytes
    shard: int


@dataclass(frozen=True)
class Part:
    """One value and where it lies, or shall lie, in L1.

    Attributes:
        name: of the value.
        header: uint8[HEADER_BYTES], writable: read by a put, filled by a get.
        room: uint8[slot_bytes], writable: the whole slot, page-aligned, a multiple of 4096 bytes
            long. A get may write all of it.
        payload_bytes: leading bytes of ``room`` that are the value.
        address: of ``room``'s first byte.
        heat: how often the chunk was used so far, as far as the server knows; for a put.
        salt: digest of the salt under which it was stored first, or empty; for a put.
    """

    name: Name
    header: memoryview
    room: memoryview
    payload_bytes: int
    address: int
    heat: int = 0
    salt: bytes = b""

    @property
    def payload(self) -> memoryview:
        """The value's bytes."""
        return self.room[: self.payload_bytes]


@dataclass(frozen=True)
class Health:
    """How a tier is.

    Attributes:
        ok: whether it would serve now.
        used_bytes: taken, as far as it knows; advisory.
        capacity_bytes: of the whole, as far as it knows, 0 for unknown; advisory.
        note: one line for people, without secrets.
        shares: fingerprints of namespaces and the bytes that each takes, where that is counted; the
            fullest come first.
        salts: digests of salts that have a quota, and the same.
        warning: of one that serves: why it may be of little use; the log has it at once, and again
            now and then while it stays so. Without secrets.
    """

    ok: bool
    used_bytes: int = 0
    capacity_bytes: int = 0
    note: str = ""
    shares: tuple[tuple[bytes, int], ...] = ()
    salts: tuple[tuple[bytes, int], ...] = ()
    warning: str = ""


class TierError(Exception):
    """Why a tier cannot be opened, or a call failed.

    Its text goes to the server's log: one line for people, without secrets.
    """


class Tier(Protocol):
    """One tier. Calls come from several threads at once; each is bounded in time by the engine.

    A call answers for each name or part, in order. Whatever goes wrong becomes a status; an
    exception counts as ``ERROR`` for all of its parts.
    """

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """Which values are there; a hint, and False for whatever cannot be asked.

        One that cannot be asked at all raises instead.
        """
        ...

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """Fills header and room of each; what OK returns is not checked yet."""
        ...

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """Keeps each; one that is there already may be left as it is, and is OK."""
        ...

    def delete(self, names: Sequence[Name]) -> None:
        """Forgets values; those that are not there do not matter."""
        ...

    def clear(self, fingerprint: bytes) -> None:
        """Forgets all values of a namespace."""
        ...

    def health(self) -> Health:
        """How it is; may cost a round trip."""
        ...

    def register(self, address: int, size_bytes: int) -> None:
        """L1 memory in which parts will lie; for engines that must know it beforehand."""
        ...

    def unregister(self, address: int, size_bytes: int) -> None:
        """That memory is about to be unmapped; no part in it is under way."""
        ...

    def close(self) -> None:
        """Ends it in good order."""
        ...


@runtime_checkable
class Moving(Protocol):
    """A tier that says, within a call, that it gets on: one over a slow network, for instance.

    Attributes:
        moved: set by the porter; to be called after each part that was carried, from any thread.
    """

    moved: Callable[[], None]


@runtime_checkable
class Touching(Protocol):
    """A tier that loses values by itself: by eviction, a flush, a lost disk.

    One that is none is taken to have what it was given until it is told to forget it.
    """

    def touch(self, names: Sequence[Name]) -> list[Status]:
        """Counts as a use of values, and says which are there.

        Args:
            names: those of a chain from its start on.

        Returns:
            OK, ABSENT, or ERROR where it cannot be told.
        """
        ...


@runtime_checkable
class Sharing(Protocol):
    """A tier that knows whose its values are, and keeps quotas."""

    def set_quotas(self, quotas: Sequence[Share]) -> None:
        """Sets all quotas anew; what is put from now on keeps to them. Quick.

        Args:
            quotas: of each tenant one.
        """
        ...

    def trim(self) -> bool:
        """Forgets of tenants above their limit some of what they used longest ago.

        Returns:
            Whether there is more to forget.
        """
        ...

    def of_salt(self, salt: bytes, most: int) -> list[Name]:
        """Values that were stored first under a salt, of any namespace.

        Args:
            salt: digest of it.
            most: names wanted, at most.

        Raises:
            OSError: nobody knows.
        """
        ...


@runtime_checkable
class Lister(Protocol):
    """What a tier can do besides if it knows what it has: then L1 can be warmed from it.

    Unlike those of ``Tier`` these calls may raise: whoever lists is told that it failed.
    """

    def keep_namespace(self, fingerprint: bytes, text: bytes) -> None:
        """Keeps the description of a namespace of which values are put; ``clear`` forgets it.

        Args:
            fingerprint: 16 bytes.
            text: whatever it is; the same each time.

        Raises:
            OSError: it cannot be kept.
        """
        ...

    def namespaces(self) -> list[bytes]:
        """Fingerprints of those that are described, and of others that have values.

        Raises:
            OSError: nobody knows.
        """
        ...

    def namespace(self, fingerprint: bytes) -> bytes:
        """A namespace's description, empty where there is none; not checked.

        Raises:
            OSError: it cannot be read.
        """
        ...

    def hottest(self, fingerprint: bytes, shard: int, most: int) -> list[bytes]:
        """Which chunks have a value of one shard.

        Args:
            fingerprint: 16 bytes, of the namespace.
            shard: which.
            most: chunks wanted, at most.

        Returns:
            Keys; those that were used last come first, and of those used about as late the ones
            used most.

        Raises:
            OSError: nobody knows.
        """
        ...

    def peek(self, name: Name) -> bytes:
        """The header of a value, which does not count as a use of it; empty for none.

        Args:
            name: of the value.

        Raises:
            OSError: it cannot be read.
        """
        ...

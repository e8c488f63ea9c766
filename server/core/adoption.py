"""What a predecessor left behind, and what a new server takes over of it.

Purpose: turn extents found at the start into owners, indexes and held slots again, keep what
former processes may still touch sealed, and unseal it when they are gone. Nothing that is torn,
foreign or without its ancestors is taken over. Must not know: files, processes, how parties are
watched. Runs in: the main thread before the loop, then the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from protocol.extents import ExtentGeometry
from protocol.ids import ExtentId, Fingerprint
from protocol.namespace import Namespace
from server.core.effects import PartyId

__all__ = ["Adoption", "FoundExtent", "FoundParty", "Heritage", "PartyId"]

HOLDS_NOTHING = "holds nothing whole"
"""Why an extent is dropped that is no loss."""


@dataclass(frozen=True)
class FoundExtent:
    """One extent file whose header was sound.

    Attributes:
        geometry: from its header.
        records: RECORD_DTYPE[num_slots], as they stand in the file, torn ones included;
            contiguous, only read.
    """

    geometry: ExtentGeometry
    records: NDArray[Any]


@dataclass(frozen=True)
class FoundParty:
    """A process of a former incarnation that was not seen gone.

    Attributes:
        party: the shell's number.
        fingerprints: namespaces whose extents it may touch; None for all (the predecessor and
            its copiers).
    """

    party: PartyId
    fingerprints: frozenset[Fingerprint] | None


@dataclass(frozen=True)
class Heritage:
    """Everything that was found.

    Attributes:
        namespaces: by fingerprint, each checked against it.
        extents: files with a sound header; each id once.
        parties: who may still touch them.
        next_extent: no file that was found, unusable ones included, has this id or a higher one.
    """

    namespaces: dict[Fingerprint, Namespace]
    extents: list[FoundExtent]
    parties: list[FoundParty]
    next_extent: int = 1


@dataclass
class Adoption:
    """What became of it.

    Attributes:
        kept: extents that the core has now; their effects may follow.
        dropped: extents to unlink, and why in a few words.
        num_chunks: chunks in the indexes.
        num_records: records that were taken over.
        records_dropped: valid or torn records that were not, by reason.
        num_sealed: kept extents that wait for parties.
    """

    kept: list[ExtentId] = field(default_factory=list)
    dropped: dict[ExtentId, str] = field(default_factory=dict)
    num_chunks: int = 0
    num_records: int = 0
    records_dropped: dict[str, int] = field(default_factory=dict)
    num_sealed: int = 0

    @property
    def num_records_dropped(self) -> int:
        """Records that were not taken over, whatever the reason."""
        return sum(self.records_dropped.values())

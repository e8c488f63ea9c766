"""What the core asks the shell to do, as data.

Purpose: the core decides, the shell acts in this order, and reports outcomes through methods of
``server.core.dispatch.Core``. Must not know: how anything is done. Runs in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode
from protocol.extents import ExtentGeometry
from protocol.ids import ExtentId, Fingerprint, PoolId, SessionId
from protocol.layout import Memory
from protocol.namespace import Namespace
from server.core.book import KeepQuotas as KeepQuotas
from server.core.finding import FindSalt as FindSalt
from server.core.tiers.listed import Asked as Asked
from server.core.tiers.listed import TierAllot as TierAllot
from server.core.tiers.listed import TierKeep as TierKeep
from server.core.tiers.listed import TierList as TierList
from server.core.tiers.listed import TierTouch as TierTouch
from server.core.told import PeerId as PeerId
from server.core.told import SendReply as SendReply

ProcessId = NewType("ProcessId", int)
"""The shell's number for one side connection, that is one process; never an OS pid."""

PoolHandle = NewType("PoolHandle", int)
"""The core's number for one pool a copier has mapped; never reused."""

JobId = NewType("JobId", int)
"""The core's number for one piece of copying; never reused."""

CopierId = NewType("CopierId", int)
"""0 is host memory; devices get one when they are first registered, numbers never used again."""
HOST_COPIER = CopierId(0)

PartyId = NewType("PartyId", int)
"""The shell's number for a process of a former incarnation that may still touch extents."""


@dataclass(frozen=True)
class DropProcess:
    """Close the side connection of a process that broke the rules; frees nothing by itself.

    Attributes:
        process: whom.
        code: why, as a number.
        reason: why, in one line.
    """

    process: ProcessId
    code: ErrorCode
    reason: str


@dataclass(frozen=True)
class ForgetProcess:
    """Stop watching a process whose side connection ended: nothing here is its any more.

    Attributes:
        process: whom.
    """

    process: ProcessId


@dataclass(frozen=True)
class CreateExtent:
    """Create, allocate and head one extent file; answered by ``Core.extent_created``.

    Attributes:
        geometry: how it is cut.
        numa_node: on which of the machine's nodes its memory had better lie; None for anywhere.
    """

    geometry: ExtentGeometry
    numa_node: int | None = None


@dataclass(frozen=True)
class KeepNamespace:
    """Write a namespace's file, which a later server needs, before any extent of it is created.

    Attributes:
        fingerprint: of the namespace.
        namespace: what to write.
    """

    fingerprint: Fingerprint
    namespace: Namespace


@dataclass(frozen=True)
class DropNamespace:
    """Remove a namespace's file: no extent is its any more.

    Attributes:
        fingerprint: which.
    """

    fingerprint: Fingerprint


@dataclass(frozen=True)
class RemoveExtent:
    """Unlink an extent file, unmap its records, tell the copiers to unmap it.

    No lease or copy touches it, and every reader said that it unmapped it, or exited.

    Attributes:
        extent: which.
    """

    extent: ExtentId


@dataclass(frozen=True)
class GiveExtent:
    """Pass an extent's read-only descriptor to a reader over its side connection.

    Attributes:
        process: whom.
        session: for which of its sessions.
        geometry: what it is.
    """

    process: ProcessId
    session: SessionId
    geometry: ExtentGeometry


@dataclass(frozen=True)
class TakeExtent:
    """Tell a reader to unmap an extent; it answers with MAPPED(unmapped).

    Attributes:
        process: whom.
        session: for which of its sessions.
        extent: which.
    """

    process: ProcessId
    session: SessionId
    extent: ExtentId


@dataclass(frozen=True)
class StartCopier:
    """Keep a copier of a device running from now on.

    Answered by ``Core.copier_ready`` each time that one is up, by ``Core.copier_refused`` each time
    that none can be.

    Attributes:
        copier: the core's number for it.
        device_uuid: 16 bytes.
    """

    copier: CopierId
    device_uuid: bytes


@dataclass(frozen=True)
class StopCopier:
    """End a device's copier: no pool is its any more. Answered by ``Core.copier_ended``.

    Attributes:
        copier: which.
    """

    copier: CopierId


@dataclass(frozen=True)
class OpenPool:
    """Have a copier map a pool read-only; answered by ``Core.pool_opened``.

    Attributes:
        copier: which copier.
        handle: the core's number for the mapping.
        process: whose it is.
        pool: which of its descriptors, None for memory that is opened by its own handle.
        memory: as registered. A descriptor's real size and seals were checked already; what a
            device's handle really names, the copier checks.
        fingerprint: of the namespace into whose extents it will be copied.
    """

    copier: CopierId
    handle: PoolHandle
    process: ProcessId
    pool: PoolId | None
    memory: Memory
    fingerprint: Fingerprint


@dataclass(frozen=True)
class ClosePool:
    """Have a copier unmap a pool; no job of it is running. Answered by ``Core.pool_closed``.

    Attributes:
        copier: which copier.
        handle: which mapping.
    """

    copier: CopierId
    handle: PoolHandle


@dataclass(frozen=True)
class DropPoolOffer:
    """Close a descriptor that a process passed and that is not needed (any more).

    Attributes:
        process: whose.
        pool: which.
    """

    process: ProcessId
    pool: PoolId


@dataclass(frozen=True)
class StartCopy:
    """Have a copier copy a piece; answered by ``Core.copy_done``. Bounds are checked already.

    Attributes:
        copier: which copier.
        job: number of the piece.
        pool: source mapping.
        extent: destination extent.
        sources: int64[n], byte offsets in the pool.
        targets: int64[n], byte offsets in the extent file.
        lengths: int64[n], bytes.
    """

    copier: CopierId
    job: JobId
    pool: PoolHandle
    extent: ExtentId
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class VoidRecords:
    """Zero the checksums of slots: they are forgotten, or their bytes are about to change.

    Attributes:
        extent: which extent.
        slots: uint32[n].
        reused: zero the generations too, since other bytes come next. Not for slots that
            somebody still reads: a reader checks that the generation stayed.
    """

    extent: ExtentId
    slots: NDArray[np.uint32]
    reused: bool = False


@dataclass(frozen=True)
class WriteRecords:
    """Write records, then their checksums, in this order.

    Attributes:
        extent: which extent.
        slots: uint32[n].
        records: RECORD_DTYPE[n], checksums included.
    """

    extent: ExtentId
    slots: NDArray[np.uint32]
    records: NDArray[Any]


TierId = NewType("TierId", int)
"""A tier below L1, by its place in the order that the operator gave: 0 is asked first."""


@dataclass(frozen=True)
class TierProbe:
    """Ask a tier how many leading chunks it has whole; answered by ``Core.tier_probed``.

    Attributes:
        tier: which.
        job: number of the question.
        fingerprint: of the namespace.
        keys: 16 bytes per chunk, consecutive chunks of one chain, at most MAX_KEYS.
        shards: so many parts of a chunk must be there.
        first: the first of them.
    """

    tier: TierId
    job: JobId
    fingerprint: Fingerprint
    keys: bytes
    shards: int
    first: int = 0


@dataclass(frozen=True)
class TierGet:
    """Have values read from a tier into reserved slots; answered by ``Core.tier_done``.

    Attributes:
        tier: which.
        job: number of the piece.
        fingerprint: of the namespace.
        parts: PART_DTYPE[n] of ``server.core.tiers.parts``, at most MAX_PARTS.
    """

    tier: TierId
    job: JobId
    fingerprint: Fingerprint
    parts: NDArray[Any]


@dataclass(frozen=True)
class TierPut:
    """Have pinned slots written to a tier; answered by ``Core.tier_done``.

    Attributes:
        tier: which.
        job: number of the piece.
        fingerprint: of the namespace.
        parts: PART_DTYPE[n] of ``server.core.tiers.parts``, at most MAX_PARTS.
    """

    tier: TierId
    job: JobId
    fingerprint: Fingerprint
    parts: NDArray[Any]


@dataclass(frozen=True)
class TierDrop:
    """Have a tier forget chunks, or a whole namespace; answered by ``Core.tier_done``.

    Puts of the same namespace that were begun before are over when it takes place.

    Attributes:
        tier: which.
        job: number of the piece.
        fingerprint: of the namespace.
        keys: 16 bytes per chunk, at most MAX_KEYS; empty for all of the namespace.
        shards: parts 0 to ``shards - 1`` of each go.
    """

    tier: TierId
    job: JobId
    fingerprint: Fingerprint
    keys: bytes
    shards: int


@dataclass(frozen=True)
class KeepOwed:
    """Write down what a tier is still to forget; answered by ``Core.owed_kept``.

    A later server needs it: without, it would find in the tier what was cleared.

    Attributes:
        tier: which.
        fingerprint: of the namespace.
        serial: of this effect, to be told with the answer.
        shards: parts of each chunk.
        keys: 16 bytes per chunk; empty for all of the namespace.
    """

    tier: TierId
    fingerprint: Fingerprint
    serial: int
    shards: int
    keys: bytes


@dataclass(frozen=True)
class DropOwed:
    """Remove what KeepOwed wrote: the tier has forgotten.

    Attributes:
        tier: which.
        fingerprint: of the namespace.
    """

    tier: TierId
    fingerprint: Fingerprint


@dataclass(frozen=True)
class TierHealth:
    """Ask a tier how it is; answered by ``Core.tier_health``.

    Attributes:
        tier: which.
        job: number of the question.
    """

    tier: TierId
    job: JobId


Effect = (
    SendReply
    | DropProcess
    | ForgetProcess
    | KeepNamespace
    | DropNamespace
    | CreateExtent
    | RemoveExtent
    | GiveExtent
    | TakeExtent
    | StartCopier
    | StopCopier
    | OpenPool
    | ClosePool
    | DropPoolOffer
    | StartCopy
    | VoidRecords
    | FindSalt
    | WriteRecords
    | TierProbe
    | TierGet
    | TierPut
    | TierDrop
    | TierHealth
    | Asked
    | KeepQuotas
    | KeepOwed
    | DropOwed
)

"""What tiers are asked besides values: what they have, and to remember something.

Further effects, see ``server.core.effects``. Must not know: how a tier knows. Runs in: the loop
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from protocol.ids import Fingerprint

if TYPE_CHECKING:
    from server.core.effects import JobId, TierId


class Listed(IntEnum):
    """What a tier is asked to list."""

    NAMESPACES = 0
    NAMESPACE = 1
    HOTTEST = 2
    NEXT = 3
    OF_SALT = 4


@dataclass(frozen=True)
class TierKeep:
    """Have a tier that can list remember what a namespace is; answered by ``Core.tier_done``.

    Attributes:
        tier, job, fingerprint: as for TierPut.
        text: its description, at most MAX_TEXT_BYTES of ``server.core.tiers.parts``.
    """

    tier: TierId
    job: JobId
    fingerprint: Fingerprint
    text: bytes


@dataclass(frozen=True)
class TierAllot:
    """Tell a tier what quotas there are from now on; answered by ``Core.tier_done``.

    Attributes:
        tier, job: as for TierPut.
        quotas: as ``server.core.tiers.parts.pack_quotas`` makes them; all of them.
    """

    tier: TierId
    job: JobId
    quotas: bytes


@dataclass(frozen=True)
class TierTouch:
    """Tell a tier that chunks are used, and ask whether it has them.

    Answered by ``Core.tier_done`` with a ``Status`` per part: OK, ABSENT, or ERROR where nobody
    knows.

    Attributes:
        tier, job, fingerprint: as for TierPut.
        keys: 16 bytes per chunk, parents first.
        shards: parts 0 to ``shards - 1`` of each are meant, MAX_TOUCHED of all chunks together at
            most unless one chunk has more; the answer has all those of the first chunk in front.
    """

    tier: TierId
    job: JobId
    fingerprint: Fingerprint
    keys: bytes
    shards: int


@dataclass(frozen=True)
class TierList:
    """Ask a tier what it has; answered by ``Core.tier_done`` with what it lists.

    NAMESPACES: fingerprints. NAMESPACE: the description of one, or empty. HOTTEST, and NEXT after
    it: ``total u32, more u32``, then for each chunk its key and that of its parent (zeros at a
    chain's start), parents before what continues them. OF_SALT: values, as
    ``server.core.tiers.parts.unpack_names`` reads them.

    Attributes:
        tier: which.
        job: number of the question.
        what: see above; the fingerprint of NAMESPACES is zeros, that of OF_SALT the salt's digest.
        shard, most: of HOTTEST: the part that stands for a chunk; chunks wanted. Of OF_SALT values.
    """

    tier: TierId
    job: JobId
    what: Listed
    fingerprint: Fingerprint
    shard: int = 0
    most: int = 0


Asked = TierKeep | TierAllot | TierTouch | TierList

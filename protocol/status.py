"""What STATUS tells: the server, its engines, namespaces, tiers and copiers, and how long it takes.

Purpose: every row that an operator's page or command shows, with a bound on each list and text.
Nothing here names a token, a key or a salt. Must not know: sockets, how the server finds it out.
Runs in: every process.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.ids import ID_BYTES
from protocol.layout import Bytes16
from protocol.namespace import Text

ShortText = Annotated[str, Meta(max_length=limits.MAX_STATUS_CHARS)]
Number = Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
OptionalId = Annotated[bytes, Meta(max_length=ID_BYTES)]

LATENCY_BOUNDS_US: Final = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
)
"""Upper ends of the latency buckets, each included, in microseconds; one more bucket has no end."""

NUM_BUCKETS: Final = len(LATENCY_BOUNDS_US) + 1

ENGINE_STATES: Final = ("connected", "operator", "registering", "serving", "leaving")
TIER_STATES: Final = ("starting", "up", "breaker open", "down")
COPIER_STATES: Final = ("starting", "up", "down", "ending")

SLOW_US: Final = 100_000
"""A request that took longer is a slow one; what it asked to wait for is left out."""

MAX_SLOW: Final = 16
"""Slow requests that the server keeps and tells, the last ones."""

COPIER_SILENT_S: Final = 1.5
"""A copier that has had work for so long and answered nothing counts as not answering: a piece of
work takes milliseconds. The server replaces it after ten seconds."""

TIER_SILENT_S: Final = 7.0
"""A tier that has had work for so long, of which none ended and no byte moved, counts as not
answering: a piece of work may move some MiB over a network. The server replaces its porter, where
that says nothing at all, after ten seconds."""


class ServerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server itself.

    Attributes:
        version: of the program.
        pid: its process; 0 where it does not tell.
        uptime_s: since it was built.
        epoch: of this incarnation.
        arena: which it serves.
        endpoint: URL on which it listens.
        draining: whether it is about to end.
        http: URL at which pages and metrics are served; empty while nothing listens.
        started_in_s: from the start of its process until engines could connect; 0 before.
        adopted_chunks: that it took over from the server before.
        adopted_bytes: of slots that held those.
        adopted_in_s: how long taking them over took.
    """

    version: ShortText
    pid: Number
    uptime_s: Seconds
    epoch: Bytes16
    arena: Bytes16
    endpoint: Text
    draining: bool = False
    http: Text = ""
    started_in_s: Seconds = 0.0
    adopted_chunks: Number = 0
    adopted_bytes: Number = 0
    adopted_in_s: Seconds = 0.0


class EngineStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One process with a side connection: a rank or several of an engine, or an operator.

    Attributes:
        client: name and version, as its HELLO said, cut off if long; empty before.
        pid: its process, 0 for unknown.
        instance: the engine; ranks in several processes have one.
        state: one of ``ENGINE_STATES``.
        connected_s: since it came.
        idle_s: since its last request, or since it came.
        namespaces: fingerprints of what it registered.
        sessions: its registered ranks.
        leases: of its engine, told with the lowest rank that is there.
        quarantined_bytes: extents that were taken back and that it has not let go of.
        requested_chunks: chunks that its LOOKUPs named.
        hit_chunks: of these, chunks that answers offered, those that tiers brought included.
    """

    client: ShortText
    pid: Number
    instance: Bytes16
    state: ShortText
    connected_s: Seconds
    idle_s: Seconds
    namespaces: Annotated[tuple[Bytes16, ...], Meta(max_length=limits.MAX_STATUS_NAMES)]
    sessions: Number
    leases: Number
    quarantined_bytes: Number
    requested_chunks: Number
    hit_chunks: Number


class NamespaceStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One namespace.

    Attributes:
        fingerprint: its name in requests.
        name: the model, as the engines name it, cut off if long.
        ranks: that split the model.
        shards: parts of a chunk.
        chunk_tokens: tokens of a chunk.
        chunk_blocks: blocks of a chunk.
        sessions: registered ranks that use it.
        chunks: in L1, incomplete ones included.
        bytes: of L1's slots that hold them.
        pinned_chunks: under PIN, each once.
        idle_s: since a LOOKUP found, or a COMMIT published, some of it; at most the uptime.
    """

    fingerprint: Bytes16
    name: ShortText
    ranks: Number
    shards: Number
    chunk_tokens: Number
    chunk_blocks: Number
    sessions: Number
    chunks: Number
    bytes: Number
    pinned_chunks: Number
    idle_s: Seconds


class TierStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One lower tier.

    Attributes:
        name: as in the figures of STATS.
        kind: ``disk``, ``valkey`` and so on.
        state: one of ``TIER_STATES``.
        used_bytes: as it last said; 0 for unknown.
        capacity_bytes: as it last said; 0 for unknown.
        jobs: what its porter has to do.
        waiting_puts: chunks that wait to be written.
        why: it is not ``up``, one line without credentials; empty while it is, or nothing is known.
        silent_s: for how long it has had work and none of it has ended, nor any byte moved, lists
            left out; 0 while it forgets.
        warning: why it may be of little use while it is ``up``, as it said when it was last looked
            at, one line without credentials; empty for nothing.
    """

    name: ShortText
    kind: ShortText
    state: ShortText
    used_bytes: Number
    capacity_bytes: Number
    jobs: Number
    waiting_puts: Number
    why: Text = ""
    silent_s: Seconds = 0.0
    warning: Text = ""


class CopierStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One copier.

    Attributes:
        name: ``host``, or the device as ``nvidia-smi -L`` names it.
        state: one of ``COPIER_STATES``.
        restarts: how often another one had to be started.
        jobs: pieces of copying it has.
        stuck: predecessors that were killed and do not end.
        silent_s: for how long it has had work and answered nothing.
    """

    name: ShortText
    state: ShortText
    restarts: Number
    jobs: Number
    stuck: Number
    silent_s: Seconds = 0.0


class OpLatency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long the server took over one operation, from the receipt of a request to its answer.

    Attributes:
        buckets: answers by bucket: within the first of the bounds, within the next and beyond that
            one, and so on; the last counts those beyond all.
        sum_us: of all.
        count: of all.
    """

    buckets: Annotated[tuple[Number, ...], Meta(min_length=NUM_BUCKETS, max_length=NUM_BUCKETS)]
    sum_us: Number
    count: Number


class SlowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request that took longer than ``SLOW_US``, from its receipt to its answer.

    Attributes:
        op: name of the operation.
        seq: the message's number on its connection.
        request: the engine's number of the request; -1 where the message names none.
        client: name and version of who asked, as its HELLO said, cut off if long.
        instance: of who asked; empty for one that is not known any more.
        fingerprint: of the namespace; empty for none, or unknown.
        spent_us: from receipt to answer, a wait that was asked for included.
        wait_ms: the longest wait that the request asked for.
        age_s: since the answer.
    """

    op: ShortText
    seq: Number
    request: Annotated[int, Meta(ge=-1, le=limits.MAX_U63)] = -1
    client: ShortText = ""
    instance: OptionalId = b""
    fingerprint: OptionalId = b""
    spent_us: Number
    wait_ms: Number = 0
    age_s: Seconds

"""Every message that travels over ZMQ, as typed structs.

Purpose: the types hold the ranges, so that decoding is checking. One request struct and one
reply struct per operation; docs/protocol.md explains each. Must not know: sockets, handlers.
Runs in: every process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.events import MAX_EVENTS, KvEvent, SnapshotKeys
from protocol.ids import ID_BYTES
from protocol.layout import Bytes16, Memory, ShardPool
from protocol.namespace import Namespace, Text
from protocol.prefixes import MAX_PREFIXES, PrefixStatus
from protocol.quotas import MAX_QUOTAS, QuotaChange, QuotaRow
from protocol.status import (
    MAX_SLOW,
    CopierStatus,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
    ServerStatus,
    SlowRequest,
    TierStatus,
)

VERSION_MAJOR = 1
VERSION_MINOR = 0

Version = Annotated[int, Meta(ge=0, le=65_535)]
Id63 = Annotated[int, Meta(ge=1, le=limits.MAX_U63)]
Request63 = Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
Count = Annotated[int, Meta(ge=0, le=limits.MAX_U32)]
ChunkCount = Annotated[int, Meta(ge=0, le=limits.MAX_BLOCKS_PER_MESSAGE)]
NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""Linux is built for no more than 1,024 nodes."""
Total = Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
Nanos = Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
HashBlob = Annotated[
    bytes, Meta(min_length=ID_BYTES, max_length=limits.MAX_BLOCKS_PER_MESSAGE * ID_BYTES)
]
PageBlob = Annotated[bytes, Meta(min_length=4, max_length=limits.MAX_BLOCKS_PER_MESSAGE * 4)]
OptionalId = Annotated[bytes, Meta(max_length=ID_BYTES)]
"""A 16-byte id or the empty string; checked where it is used."""
TraceParent = Annotated[str, Meta(max_length=limits.MAX_TRACEPARENT_CHARS)]
"""Version, trace, span and flags in hexadecimal digits, or empty. What is none is passed over."""

MAX_STOP_REASON = 65_535
"""Largest number that a stop reason may ever have."""


class Op(IntEnum):
    """Operation numbers; a number, once published, keeps its meaning for ever."""

    HELLO = 1
    REGISTER_KV_CACHE = 2
    MAPPED = 3
    UNREGISTER = 4
    HEARTBEAT = 5
    PING = 6
    LOOKUP = 10
    QUERY_PREFETCH_STATUS = 11
    RETRIEVE = 12
    RELEASE = 13
    END_SESSION = 14
    STORE = 20
    COMMIT = 21
    CANCEL = 22
    STATS = 30
    CLEAR = 31
    PIN = 32
    UNPIN = 33
    INSPECT = 34
    DELETE = 35
    WARM = 36
    WARM_STATUS = 37
    WARM_CANCEL = 38
    STATUS = 39
    QUOTAS = 40
    EVENTS = 41
    SNAPSHOT = 42
    DELETE_SALT = 43


class StopReason(IntEnum):
    """Why a STORE or COMMIT covered less than was asked.

    Numbers that a later minor version may have read as a member named OTHER with that number.
    """

    NONE = 0
    BUSY = 1
    MISSING_PARENT = 2
    NO_ROOM = 3
    CLEARED = 4
    COPY_FAILED = 5

    @classmethod
    def _missing_(cls, value: object) -> StopReason | None:
        if not isinstance(value, int) or not 0 <= value <= MAX_STOP_REASON:
            return None
        other = int.__new__(cls, value)
        other._name_, other._value_ = "OTHER", value
        return other


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every body: a MessagePack map; unknown fields are refused."""


class Request(Body, frozen=True, kw_only=True):
    """Base of request bodies; ``op`` is the operation's number."""

    op: ClassVar[Op]


class Hello(Request, frozen=True, kw_only=True):
    """First request of a ZMQ connection. Its fields never change; ``features`` extends it.

    Attributes:
        token: from the side socket; empty over tcp when the side socket is not known yet.
        instance: the engine; the same as on the side socket.
        major: protocol version wanted; another major is refused, naming ours.
        minor: the highest minor known; the reply says which is used.
        client: name and version for logs.
        features: optional abilities of the client.
    """

    op: ClassVar[Op] = Op.HELLO
    token: OptionalId
    instance: Bytes16
    major: Version
    minor: Version
    client: Text = ""
    features: Annotated[tuple[Text, ...], Meta(max_length=limits.MAX_CAPABILITIES)] = ()


class HelloReply(Body, frozen=True, kw_only=True):
    """The server's incarnation and limits.

    Attributes:
        epoch: goes into every further request.
        arena: goes into every further request.
        now_ns: the server's monotonic clock; deadlines are told on it.
        major: version in use.
        minor: version in use.
        capabilities: operations and abilities beyond the base set.
        max_blocks: most chunks or pages per message.
        max_frame_bytes: longest frame accepted.
        heartbeat_s: how often the server wants to hear of live requests.
    """

    epoch: Bytes16
    arena: Bytes16
    now_ns: Nanos
    major: Version
    minor: Version
    capabilities: Annotated[tuple[Text, ...], Meta(max_length=limits.MAX_CAPABILITIES)] = ()
    max_blocks: Count
    max_frame_bytes: Count
    heartbeat_s: Annotated[float, Meta(gt=0, le=3600)]


class RegisterKvCache(Request, frozen=True, kw_only=True):
    """Announces one rank's pool.

    The first registration of an instance fixes its namespace; the other ranks join it with the
    same instance and namespace and their own rank.

    Attributes:
        namespace: identity of the KV bytes.
        rank: 0 <= rank < namespace.num_ranks.
        memory: where the pool lies; None for a reader that only loads.
        pools: the pages of each shard this rank stores.
        numa_node: of the machine's memory that is near the rank's device; None for unknown.
    """

    op: ClassVar[Op] = Op.REGISTER_KV_CACHE
    namespace: Namespace
    rank: Annotated[int, Meta(ge=0, lt=limits.MAX_READERS)]
    memory: Memory | None
    pools: Annotated[tuple[ShardPool, ...], Meta(max_length=limits.MAX_GROUPS)]
    numa_node: NumaNode | None = None


class RegisterKvCacheReply(Body, frozen=True, kw_only=True):
    """The session; its extents' descriptors follow on the side socket.

    Attributes:
        session: names this registration in later requests.
        fingerprint: of the namespace.
        extents: extents the server is passing on now.
    """

    session: Id63
    fingerprint: Bytes16
    extents: Count


class Mapped(Request, frozen=True, kw_only=True):
    """Reports extents that this rank has mapped and populated, or has unmapped again.

    Attributes:
        session: of this rank.
        mapped: extent ids, u32 LE each.
        unmapped: extent ids, u32 LE each.
    """

    op: ClassVar[Op] = Op.MAPPED
    session: Id63
    mapped: Annotated[bytes, Meta(max_length=limits.MAX_EXTENTS_PER_MESSAGE * 4)] = b""
    unmapped: Annotated[bytes, Meta(max_length=limits.MAX_EXTENTS_PER_MESSAGE * 4)] = b""


class Unregister(Request, frozen=True, kw_only=True):
    """Ends a session; answered when no copy of it can touch its pool any more."""

    op: ClassVar[Op] = Op.UNREGISTER
    session: Id63


class Heartbeat(Request, frozen=True, kw_only=True):
    """Names the live requests; unretrieved leases of other requests of the instance go.

    Attributes:
        session: of the scheduler's rank.
        requests: request keys, u64 LE each.
    """

    op: ClassVar[Op] = Op.HEARTBEAT
    session: Id63
    requests: Annotated[bytes, Meta(max_length=limits.MAX_LIVE_REQUESTS * 8)] = b""


class HeartbeatReply(Body, frozen=True, kw_only=True):
    """The incarnation that answers, and whether it knows all of the engine.

    Attributes:
        epoch: of the server that answers.
        missing_ranks: ranks of the namespace that this engine has not registered here; LOOKUP
            answers nothing while there is one.
    """

    epoch: Bytes16
    missing_ranks: Annotated[int, Meta(ge=0, le=limits.MAX_READERS)] = 0


class Ping(Request, frozen=True, kw_only=True):
    """Asks nothing; the shortest way through the loop."""

    op: ClassVar[Op] = Op.PING


class Done(Body, frozen=True, kw_only=True):
    """Reply without content."""


class Lookup(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks which leading chunks of a range are held, and leases them.

    Attributes:
        session: of the scheduler's rank.
        request: request key; a further LOOKUP under it replaces the unretrieved lease.
        start: ordinal of the first chunk asked for.
        keys: chunk keys from ``start`` on, 16 bytes each.
        tenant: digest of the request's salt, or empty; only to a server that can ``tenants``.
        traceparent: of the span that asks, as W3C Trace Context has it; only to a server that can
            ``traces``.
    """

    op: ClassVar[Op] = Op.LOOKUP
    session: Id63
    request: Request63
    start: Count
    keys: HashBlob
    tenant: OptionalId = b""
    traceparent: TraceParent = ""


class LookupReply(Body, frozen=True, kw_only=True):
    """What was matched and leased.

    Attributes:
        lease: 16 bytes, or empty when ``ready`` is 0.
        ready: chunks from ``start`` on that are leased and mapped by every reader.
        pending: further chunks of the range that may be on their way into L1.
        final: nothing more will come for this request.
    """

    lease: OptionalId
    ready: ChunkCount
    pending: ChunkCount = 0
    final: bool = True


class QueryPrefetchStatus(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Waits in the server for pending chunks of a LOOKUP; answered with LookupReply.

    Attributes:
        session: of the scheduler's rank.
        request: request key of the LOOKUP.
        wait_ms: longest wait.
        traceparent: of the span that asks, as W3C Trace Context has it; only to a server that can
            ``traces``.
    """

    op: ClassVar[Op] = Op.QUERY_PREFETCH_STATUS
    session: Id63
    request: Request63
    wait_ms: Annotated[int, Meta(ge=0, le=limits.MAX_WAIT_MS)]
    traceparent: TraceParent = ""


class Retrieve(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks where leased chunks lie, and pins them for every reader of the instance.

    Attributes:
        session: of the scheduler's rank.
        lease: from LOOKUP.
        start: ordinal of the first chunk, within the lease.
        count: chunks.
        traceparent: of the span that asks, as W3C Trace Context has it; only to a server that can
            ``traces``.
    """

    op: ClassVar[Op] = Op.RETRIEVE
    session: Id63
    lease: Bytes16
    start: Count
    count: Annotated[int, Meta(ge=1, le=limits.MAX_BLOCKS_PER_MESSAGE)]
    traceparent: TraceParent = ""


class RetrieveReply(Body, frozen=True, kw_only=True):
    """Where the leased chunks lie.

    Attributes:
        slots: SLOT_DTYPE[count, num_shards], chunk-major, shards ascending.
        num_shards: shards per chunk.
    """

    slots: Annotated[bytes, Meta(max_length=limits.MAX_SLOTS_PER_REPLY * 16)]
    num_shards: Annotated[int, Meta(ge=1, le=limits.MAX_SHARDS)]


class Release(Request, frozen=True, kw_only=True):
    """Gives back part or all of a lease; repeating it is harmless.

    Attributes:
        session: of the rank that gives back.
        lease: which lease.
        start: first chunk given back.
        count: chunks; 0 means all of them.
        all_readers: the scheduler gives back for every rank, since the lease never reached them.
    """

    op: ClassVar[Op] = Op.RELEASE
    session: Id63
    lease: Bytes16
    start: Count = 0
    count: ChunkCount = 0
    all_readers: bool = False


class EndSession(Request, frozen=True, kw_only=True):
    """Ends a request: its unretrieved leases and waits go. Idempotent.

    Attributes:
        session: of the scheduler's rank.
        request: request key.
    """

    op: ClassVar[Op] = Op.END_SESSION
    session: Id63
    request: Request63


class Released(Body, frozen=True, kw_only=True):
    """How much a release ended.

    Attributes:
        chunks: chunks whose lease ended by this.
    """

    chunks: Count


class Store(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks the server to pull pages of one shard; answered when the copy is complete.

    Attributes:
        session: of the rank that owns the pages.
        store: id for COMMIT and CANCEL.
        request: request key, for attribution.
        shard: which shard the pages hold.
        start: ordinal of the first chunk.
        parent: key of chunk ``start - 1``; empty when ``start`` is 0.
        keys: chunk keys, 16 bytes each.
        pages: page ids, int32 LE, ``chunk_blocks`` per chunk.
        tenant: digest of the request's salt, or empty; only to a server that can ``tenants``.
        traceparent: of the span that asks, as W3C Trace Context has it; only to a server that can
            ``traces``.
    """

    op: ClassVar[Op] = Op.STORE
    session: Id63
    store: Id63
    request: Request63
    shard: Annotated[int, Meta(ge=0, lt=limits.MAX_SHARDS)]
    start: Count
    parent: OptionalId
    keys: HashBlob
    pages: PageBlob
    tenant: OptionalId = b""
    traceparent: TraceParent = ""


class StoreReply(Body, frozen=True, kw_only=True):
    """What a STORE found and copied.

    Attributes:
        held: leading chunks that the server had already.
        copied: chunks after those that were copied and await COMMIT.
        stop: why fewer than all, or NONE.
    """

    held: ChunkCount
    copied: ChunkCount
    stop: StopReason = StopReason.NONE


class Commit(Request, frozen=True, kw_only=True):
    """Confirms that the copied pages held what their keys say during the whole copy.

    Attributes:
        session: of the STORE.
        store: of the STORE.
        count: leading copied chunks to publish; the rest is dropped.
    """

    op: ClassVar[Op] = Op.COMMIT
    session: Id63
    store: Id63
    count: ChunkCount


class CommitReply(Body, frozen=True, kw_only=True):
    """What a COMMIT published.

    Attributes:
        published: chunks now held by this commit.
        stop: why fewer than asked, or NONE.
    """

    published: ChunkCount
    stop: StopReason = StopReason.NONE


class Cancel(Request, frozen=True, kw_only=True):
    """Withdraws a STORE; answered when no copy of it can touch the pool any more. Idempotent."""

    op: ClassVar[Op] = Op.CANCEL
    session: Id63
    store: Id63


class Stats(Request, frozen=True, kw_only=True):
    """Asks for the server's counters."""

    op: ClassVar[Op] = Op.STATS


class StatsReply(Body, frozen=True, kw_only=True):
    """The server's counters.

    Attributes:
        values: counter name to value; names are listed in docs/operations.md.
    """

    values: Annotated[dict[Text, int], Meta(max_length=1024)]


class Status(Request, frozen=True, kw_only=True):
    """Asks who is there and how everything is."""

    op: ClassVar[Op] = Op.STATUS


class StatusReply(Body, frozen=True, kw_only=True):
    """Who is there and how everything is; see ``protocol.status`` for the rows.

    Attributes:
        server: the server itself.
        engines: processes on the side socket, those with sessions first.
        engines_more: processes left out.
        namespaces: the fullest first.
        namespaces_more: namespaces left out.
        tiers: in the order of asking.
        copiers: that of host memory first.
        latency_bounds_us: upper ends of the buckets, each included.
        latency: by operation, as far as there were any.
        prefixes: those that LOOKUPs found most of late, the hottest first.
        slow: the last requests that took long, the newest first.
    """

    server: ServerStatus
    engines: Annotated[tuple[EngineStatus, ...], Meta(max_length=limits.MAX_STATUS_ROWS)]
    engines_more: Count = 0
    namespaces: Annotated[tuple[NamespaceStatus, ...], Meta(max_length=limits.MAX_STATUS_ROWS)]
    namespaces_more: Count = 0
    tiers: Annotated[tuple[TierStatus, ...], Meta(max_length=limits.MAX_STATUS_ROWS)]
    copiers: Annotated[tuple[CopierStatus, ...], Meta(max_length=limits.MAX_STATUS_ROWS)]
    latency_bounds_us: Annotated[tuple[Total, ...], Meta(max_length=limits.MAX_STATUS_ROWS)]
    latency: Annotated[dict[Text, OpLatency], Meta(max_length=limits.MAX_STATUS_ROWS)]
    prefixes: Annotated[tuple[PrefixStatus, ...], Meta(max_length=MAX_PREFIXES)] = ()
    slow: Annotated[tuple[SlowRequest, ...], Meta(max_length=MAX_SLOW)] = ()


class Clear(Request, frozen=True, kw_only=True):
    """Forgets the chunks of one namespace, or of all.

    Attributes:
        fingerprint: of a namespace; empty for all.
    """

    op: ClassVar[Op] = Op.CLEAR
    fingerprint: OptionalId = b""


class ChunkCountReply(Body, frozen=True, kw_only=True):
    """How many chunks an operation concerned.

    Attributes:
        chunks: chunks affected or found.
    """

    chunks: Count


class InspectReply(ChunkCountReply, frozen=True, kw_only=True):
    """What is there of a prefix.

    Attributes:
        tiers: leading chunks that a lower tier says it has, by its name; a hint. Without those that
            were not asked, could not be, or did not answer in time.
    """

    tiers: Annotated[dict[Text, Count], Meta(max_length=limits.MAX_STATUS_ROWS)] = {}


class ForgottenReply(ChunkCountReply, frozen=True, kw_only=True):
    """What CLEAR and DELETE came to.

    Attributes:
        tiers_pending: lower tiers that have not forgotten yet.
    """

    tiers_pending: Count = 0


class Pin(Request, frozen=True, kw_only=True):
    """Bars eviction of a prefix for a time.

    Attributes:
        fingerprint: of the namespace.
        keys: chunk keys from chunk 0 on.
        ttl_s: how long.
    """

    op: ClassVar[Op] = Op.PIN
    fingerprint: Bytes16
    keys: HashBlob
    ttl_s: Annotated[int, Meta(ge=1, le=limits.MAX_TTL_S)]


class Unpin(Request, frozen=True, kw_only=True):
    """Takes back a PIN of the same prefix. Idempotent."""

    op: ClassVar[Op] = Op.UNPIN
    fingerprint: Bytes16
    keys: HashBlob


class Inspect(Request, frozen=True, kw_only=True):
    """Counts the leading chunks that are complete, without leasing them.

    Attributes:
        fingerprint: of the namespace.
        keys: chunk keys from chunk 0 on, 16 bytes each.
        tiers: whether lower tiers are asked, too.
    """

    op: ClassVar[Op] = Op.INSPECT
    fingerprint: Bytes16
    keys: HashBlob
    tiers: bool = False


class Delete(Request, frozen=True, kw_only=True):
    """Forgets the named chunks and everything that continues them."""

    op: ClassVar[Op] = Op.DELETE
    fingerprint: Bytes16
    keys: HashBlob


class DeleteSalt(Request, frozen=True, kw_only=True):
    """Forgets all that was stored under one salt, or counts it.

    Attributes:
        tenant: digest of the salt.
        look: whether it is only counted.
    """

    op: ClassVar[Op] = Op.DELETE_SALT
    tenant: Bytes16
    look: bool = False


class DeleteSaltReply(ChunkCountReply, frozen=True, kw_only=True):
    """What was there of a salt.

    Attributes:
        tier_values: of lower tiers that know whose theirs are, by name: parts of chunks that each
            named and said that it forgot, or that it named; with ``more`` there may be others.
        tiers_unknown: tiers that are written to and do not know, or could not be asked: of them
            goes what L1 and the others named.
        tiers_pending: lower tiers that have not forgotten yet.
        more: there is more: ask again.
    """

    tier_values: Annotated[dict[Text, Count], Meta(max_length=limits.MAX_STATUS_ROWS)] = {}
    tiers_unknown: Annotated[tuple[Text, ...], Meta(max_length=limits.MAX_STATUS_ROWS)] = ()
    tiers_pending: Count = 0
    more: bool = False


class Warm(Request, frozen=True, kw_only=True):
    """Begins to load chunks from lower tiers before anybody asks for them.

    Attributes:
        fingerprint: of a namespace; empty for all.
        keys: chunk keys from chunk 0 on, 16 bytes each, of the one prefix that is wanted; empty
            for what tiers list.
        max_bytes: most that is loaded; 0 for as much as fits.
    """

    op: ClassVar[Op] = Op.WARM
    fingerprint: OptionalId = b""
    keys: Annotated[bytes, Meta(max_length=limits.MAX_BLOCKS_PER_MESSAGE * ID_BYTES)] = b""
    max_bytes: Total = 0


class WarmReply(Body, frozen=True, kw_only=True):
    """A warm job was begun.

    Attributes:
        warm: names it in WARM_STATUS and WARM_CANCEL.
    """

    warm: Id63


class WarmStatus(Request, frozen=True, kw_only=True):
    """Asks how far a warm job is."""

    op: ClassVar[Op] = Op.WARM_STATUS
    warm: Id63


class WarmCancel(Request, frozen=True, kw_only=True):
    """Ends a warm job; what it loaded stays. Idempotent."""

    op: ClassVar[Op] = Op.WARM_CANCEL
    warm: Id63


class WarmStatusReply(Body, frozen=True, kw_only=True):
    """How far a warm job is.

    Attributes:
        listed: chunks that tiers say they have, as far as asked.
        held: of these, chunks that were in L1 already.
        loaded: of these, chunks loaded.
        loaded_bytes: bytes of those.
        missed: of these, chunks that did not come.
        final: nothing more comes.
        reason: why, for people; empty before.
    """

    listed: Total
    held: Total
    loaded: Total
    loaded_bytes: Total
    missed: Total
    final: bool
    reason: Text = ""


class Quotas(Request, frozen=True, kw_only=True):
    """Asks for tenants' quotas, after one of them was changed if that is wanted.

    Attributes:
        change: one tenant's quota from now on; None to change nothing.
    """

    op: ClassVar[Op] = Op.QUOTAS
    change: QuotaChange | None = None


class QuotasReply(Body, frozen=True, kw_only=True):
    """Who has which quota.

    Attributes:
        arena_bytes: of L1; the floors together are no more.
        quotas: of all that have one, namespaces first.
    """

    arena_bytes: Total
    quotas: Annotated[tuple[QuotaRow, ...], Meta(max_length=MAX_QUOTAS)]


class Events(Request, frozen=True, kw_only=True):
    """Asks which chunks L1 came to hold, and which it holds no more, after a place in the stream.

    Attributes:
        cursor: number of the first event wanted; 0 to begin.
        max_events: most events wanted at once.
        wait_ms: longest wait for the first one.
    """

    op: ClassVar[Op] = Op.EVENTS
    cursor: Total
    max_events: Annotated[int, Meta(ge=1, le=MAX_EVENTS)] = MAX_EVENTS
    wait_ms: Annotated[int, Meta(ge=0, le=limits.MAX_WAIT_MS)] = 0


class EventsReply(Body, frozen=True, kw_only=True):
    """A part of the stream.

    Attributes:
        cursor: what to ask for next.
        lost: events before it are gone; what is held is known from a snapshot only.
        events: in their order, ending right before ``cursor``.
    """

    cursor: Total
    lost: bool = False
    events: Annotated[tuple[KvEvent, ...], Meta(max_length=MAX_EVENTS)] = ()


class Snapshot(Request, frozen=True, kw_only=True):
    """Asks for one page of what L1 holds.

    Attributes:
        fingerprint: of the namespace where the page begins; empty for the first page.
        position: where in it.
    """

    op: ClassVar[Op] = Op.SNAPSHOT
    fingerprint: OptionalId = b""
    position: Count = 0


class SnapshotReply(Body, frozen=True, kw_only=True):
    """One page of what L1 holds, all of one namespace.

    Attributes:
        fingerprint: of the namespace; empty when there is none.
        keys: 16 bytes per chunk, in any order.
        parents: key of the chunk before each; zeros at a chain's start.
        next_fingerprint: for the next page; empty when this was the last.
        next_position: for the next page.
    """

    fingerprint: OptionalId
    keys: SnapshotKeys
    parents: SnapshotKeys
    next_fingerprint: OptionalId = b""
    next_position: Count = 0


class ErrorBody(Body, frozen=True, kw_only=True):
    """Body of a reply whose code is not 0.

    Attributes:
        message: one line: what is wrong and what is valid.
        retryable: whether the same request may succeed later.
        detail: named facts.
    """

    message: Text
    retryable: bool
    detail: Annotated[
        dict[Text, int | Text],
        Meta(max_length=limits.MAX_DETAIL_FIELDS),
    ] = {}


_PAIRS: tuple[tuple[type[Request], type[Body]], ...] = (
    (Hello, HelloReply),
    (RegisterKvCache, RegisterKvCacheReply),
    (Mapped, Done),
    (Unregister, Done),
    (Heartbeat, HeartbeatReply),
    (Ping, Done),
    (Lookup, LookupReply),
    (QueryPrefetchStatus, LookupReply),
    (Retrieve, RetrieveReply),
    (Release, Released),
    (EndSession, Released),
    (Store, StoreReply),
    (Commit, CommitReply),
    (Cancel, Done),
    (Stats, StatsReply),
    (Clear, ForgottenReply),
    (Pin, ChunkCountReply),
    (Unpin, ChunkCountReply),
    (Inspect, InspectReply),
    (Delete, ForgottenReply),
    (Warm, WarmReply),
    (WarmStatus, WarmStatusReply),
    (WarmCancel, WarmStatusReply),
    (Status, StatusReply),
    (Quotas, QuotasReply),
    (Events, EventsReply),
    (Snapshot, SnapshotReply),
    (DeleteSalt, DeleteSaltReply),
)

REQUEST_TYPES: dict[int, type[Request]] = {int(pair[0].op): pair[0] for pair in _PAIRS}
TRACED = (Lookup, QueryPrefetchStatus, Retrieve, Store)
"""Requests that may name the span that asks."""

REPLY_TYPES: dict[int, type[Body]] = {int(pair[0].op): pair[1] for pair in _PAIRS}


def as_plain(body: Body) -> dict[str, Any]:
    """A body as plain values, for logs and tests."""
    plain: dict[str, Any] = msgspec.to_builtins(body, builtin_types=(bytes,))
    return plain

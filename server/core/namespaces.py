"""Owners, instances and sessions: who shares what.

Purpose: an owner is one namespace with its index and extents; an instance is one engine, fixed to
one owner; a session is one rank of it. Content belongs to owners and stays when engines go (B16).
Must not know: sockets, how extents are chosen. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from protocol.extents import align
from protocol.ids import ExtentId, Fingerprint, InstanceId, RequestKey, SessionId, StoreId
from protocol.layout import Memory, ShardPool
from protocol.namespace import Namespace
from server.core.admission import MORE, WALK_BLOCKS, Steps
from server.core.effects import HOST_COPIER, CopierId, PoolHandle, ProcessId
from server.core.eviction import EvictionPolicy
from server.core.index import ABSENT, ChunkIndex

if TYPE_CHECKING:
    from server.core.extents import Extent
    from server.core.lease import Lease
    from server.core.stores import StorePlan


class PoolState(Enum):
    """Where a session's pool stands with the copier."""

    NONE = 0
    OPENING = 1
    OPEN = 2
    CLOSING = 3
    LOST = 4


@dataclass
class Owner:
    """One namespace.

    Attributes:
        fingerprint: of the namespace.
        namespace: as registered.
        index: its chunks; replaced as a whole by CLEAR.
        leaves: order of eviction of ``index``.
        extents: for each shard, its extents in order of creation, being emptied ones included.
        sessions: live registrations.
        readers_per_shard: processes that read each shard.
        window_tokens: window of each shard, 0 for full attention.
        cleared_generation: slots published up to this generation were cleared.
        pressed_ns: when it last looked for another owner's extent.
        warming: whether an operator has its chunks loaded before any engine comes.
        numa_nodes: by shard, the node that the rank which last registered pages of it is near to;
            ranks that said none change nothing.
        used_ns: when a LOOKUP last found, or a COMMIT published, some of it; 0 for never.
        kept_ns: when it was last seen to be wanted or pinned, where that is looked after.
        held_bytes: slots' bytes of what is published.
        reserved_bytes: the same of what STOREs and promotions have taken and not published.
        file_bytes: length of its extents, those included that are being emptied or unmapped.
    """

    fingerprint: Fingerprint
    namespace: Namespace
    index: ChunkIndex
    leaves: EvictionPolicy
    extents: list[list[Extent]]
    readers_per_shard: tuple[int, ...]
    window_tokens: tuple[int, ...]
    sessions: set[SessionId] = field(default_factory=set)
    cleared_generation: int = 0
    pressed_ns: int = 0
    warming: bool = False
    numa_nodes: dict[int, int] = field(default_factory=dict)
    used_ns: int = 0
    kept_ns: int = 0
    held_bytes: int = 0
    reserved_bytes: int = 0
    file_bytes: int = 0

    @property
    def num_shards(self) -> int:
        """Parts of one chunk."""
        return len(self.readers_per_shard)

    @cached_property
    def slot_bytes(self) -> tuple[int, ...]:
        """Bytes of a slot of each shard."""
        payload = self.namespace.slot_payload_bytes
        return tuple(align(payload(shard)) for shard in range(self.num_shards))

    @cached_property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk."""
        return self.namespace.chunk_tokens

    @property
    def taken_bytes(self) -> int:
        """Slots' bytes of what is published, and of what STOREs and promotions have taken."""
        return self.held_bytes + self.reserved_bytes

    def add_extent(self, extent: Extent) -> None:
        """Gives it an extent, which is empty or whose slots are counted by itself."""
        self.extents[extent.geometry.shard].append(extent)
        self.file_bytes += extent.file_bytes

    def remove_extent(self, extent: Extent) -> None:
        """Takes an extent that holds nothing any more."""
        self.extents[extent.geometry.shard].remove(extent)
        self.file_bytes -= extent.file_bytes

    @property
    def is_wanted(self) -> bool:
        """Whether anybody may make use of what comes; else it may end at any moment."""
        return bool(self.sessions) or self.warming

    def reaches(self, window_tokens: int, chunk: int, end: int) -> bool:
        """Whether a window before the end of a match reaches into a chunk.

        Args:
            window_tokens: of a layer group.
            chunk: ordinal.
            end: ordinal of the first chunk that is not matched.
        """
        chunk_tokens = self.chunk_tokens
        return (chunk + 1) * chunk_tokens > end * chunk_tokens - window_tokens


@dataclass
class Instance:
    """One engine.

    Attributes:
        instance: its id.
        owner: its namespace.
        ranks: registered ranks.
        requests: the lease of each live request that is not wholly retrieved.
        leases: every lease, those that only readers hold included.
        num_leased_slots: slot descriptors remembered for its readers.
        unmapped: extents that some rank was given and has not mapped, and by how many ranks.
    """

    instance: InstanceId
    owner: Owner
    ranks: dict[int, Session] = field(default_factory=dict)
    requests: dict[RequestKey, Lease] = field(default_factory=dict)
    leases: set[bytes] = field(default_factory=set)
    num_leased_slots: int = 0
    unmapped: dict[ExtentId, int] = field(default_factory=dict)

    @property
    def missing_ranks(self) -> int:
        """Ranks that are not registered and ready."""
        ready = sum(session.is_ready for session in self.ranks.values())
        return self.owner.namespace.num_ranks - ready

    @property
    def is_whole(self) -> bool:
        """Whether every rank is registered, ready, and its side connection stands.

        A rank that lost its connection is about to end its session, and with it its pins: nothing
        may be offered that it would have to read under them.
        """
        if len(self.ranks) != self.owner.namespace.num_ranks:
            return False
        # No generator: each LOOKUP asks this.
        for session in self.ranks.values():
            if session.is_quiet or not session.is_ready:
                return False
        return True


@dataclass
class Session:
    """One rank of an engine.

    Attributes:
        session: its number.
        process: whose it is.
        instance: the engine.
        rank: its rank.
        memory: its pool, or None for a reader that only loads.
        pools: pages by shard.
        shards: shards this rank reads.
        handle: the copier's mapping of its pool.
        copier: which copier.
        pool_state: whether the copier has it mapped.
        is_ready: whether REGISTER_KV_CACHE was answered.
        is_closing: no new work; waiting for copies and the copier.
        is_quiet: the side connection of its process ended.
        extents: extents it was given, and whether it has mapped each.
        stores: STOREs that are copying or await COMMIT.
        requested_chunks: chunks that its LOOKUPs named.
        hit_chunks: of these, chunks that answers offered.
    """

    session: SessionId
    process: ProcessId
    instance: Instance
    rank: int
    memory: Memory | None
    pools: dict[int, ShardPool]
    shards: tuple[int, ...]
    handle: PoolHandle
    copier: CopierId = HOST_COPIER
    pool_state: PoolState = PoolState.NONE
    is_ready: bool = False
    is_closing: bool = False
    is_quiet: bool = False
    extents: dict[ExtentId, bool] = field(default_factory=dict)
    stores: dict[StoreId, StorePlan] = field(default_factory=dict)
    requested_chunks: int = 0
    hit_chunks: int = 0

    @property
    def owner(self) -> Owner:
        """Its namespace."""
        return self.instance.owner


def shard_groups(namespace: Namespace) -> list[int]:
    """Layer group of each shard.

    Args:
        namespace: any.

    Returns:
        ``num_shards`` indices into ``groups``.
    """
    return [
        index
        for index, group in enumerate(namespace.groups)
        for _ in range(1 if group.replicated else namespace.num_ranks)
    ]


def peel(owner: Owner, root: int, drop: Callable[[int], bool]) -> Steps:
    """Takes a subtree away leaf by leaf, in slices; the rest is a whole tree at every moment.

    Args:
        owner: whose index.
        root: top of the subtree.
        drop: removes a leaf, or refuses, which ends the walk.
    """
    index = owner.index
    life = index.life[root]
    at, at_life, cost = root, life, 0
    while index is owner.index and index.life[root] == life:
        if index.life[at] != at_life:
            at, at_life = root, life
        child = index.first_child[at]
        if child != ABSENT:
            at, at_life = child, index.life[child]
            cost += 1
        else:
            above = root if at == root else index.parent[at]
            above_life = index.life[above]
            if not drop(at):
                return
            at, at_life = above, above_life
            cost += WALK_BLOCKS // 32
        if cost >= WALK_BLOCKS:
            cost = 0
            yield MORE

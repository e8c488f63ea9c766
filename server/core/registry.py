"""Engines come and go: registration, ranks, and what an exit frees.

Purpose: REGISTER_KV_CACHE is answered once the copier has the pool and each shard has an extent;
UNREGISTER once no copy can touch the pool; an exit frees all of a process's share and keeps what it
stored (design rule 5, B16). Must not know: sockets, how extents are made. Runs in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ExtentId, Fingerprint, InstanceId, PoolId, SessionId
from protocol.layout import MemfdMemory, ShardPool, check_pool
from protocol.messages import Done, RegisterKvCache, RegisterKvCacheReply
from protocol.namespace import Namespace, fingerprint
from server.core.admission import Lanes
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.config import SECOND_NS, CoreConfig
from server.core.copies import CopyWindow
from server.core.effects import HOST_COPIER, ClosePool, DropPoolOffer, OpenPool, PoolHandle
from server.core.eviction import LeafLru
from server.core.extents import Phase
from server.core.growth import Growth
from server.core.index import ChunkIndex
from server.core.leases import Leases
from server.core.namespaces import Instance, Owner, PoolState, Session, shard_groups
from server.core.outbox import Outbox, Ticket
from server.core.peers import Peers, Process
from server.core.plans import Plans
from server.core.readers import Readers

WAIT_NS = 60 * SECOND_NS
"""Longest wait of a request that names no deadline."""


@dataclass
class Registration:
    """A REGISTER_KV_CACHE that is not answered yet.

    Attributes:
        ticket: its reply.
        missing: shards that have no extent yet.
    """

    ticket: Ticket
    missing: set[int] = field(default_factory=set)


@dataclass
class Closing:
    """A session on its way out.

    Attributes:
        tickets: UNREGISTERs that await it.
        keep_offer: the descriptor goes back to the offers, so that REGISTER may be tried again.
    """

    tickets: list[Ticket] = field(default_factory=list)
    keep_offer: bool = False


class Registry:
    """Owners, instances and sessions.

    Args:
        config: settings.
        clock: current time.
        outbox: replies and effects.
        peers: processes and their offers.
        arena: slots and extents.
        growth: new extents.
        readers: who is given them.
        leases: what readers hold.
        plans: STOREs.
        lanes: long work.
        window: of the host copier.

    Attributes:
        owners: by fingerprint.
        instances: by id.
        sessions: by number, closing ones included.
    """

    def __init__(
        self,
        config: CoreConfig,
        clock: Clock,
        outbox: Outbox,
        peers: Peers,
        arena: Arena,
        growth: Growth,
        readers: Readers,
        leases: Leases,
        plans: Plans,
        lanes: Lanes,
        window: CopyWindow,
    ) -> None:
        self._config = config
        self._clock = clock
        self._outbox = outbox
        self._peers = peers
        self._arena = arena
        self._growth = growth
        self._readers = readers
        self._leases = leases
        self._plans = plans
        self._lanes = lanes
        self._window = window
        self.owners: dict[Fingerprint, Owner] = {}
        self.instances: dict[InstanceId, Instance] = {}
        self.sessions: dict[SessionId, Session] = {}
        self._by_handle: dict[PoolHandle, Session] = {}
        self._pending: dict[SessionId, Registration] = {}
        self._closing: dict[SessionId, Closing] = {}
        self._next_session = 1
        self._next_handle = 1
        plans.ended = self._advance_closing
        growth.removed = self._forget_if_over

    # --- registering ----------------------------------------------------------------------

    def register(self, process: Process, body: RegisterKvCache, ticket: Ticket) -> None:
        """REGISTER_KV_CACHE; answered later.

        Args:
            process: who asks.
            body: the request.
            ticket: its reply.

        Raises:
            RequestError: whatever is wrong with the request, or NO_ROOM.
        """
        name = fingerprint(body.namespace)
        pools = self._check(process, body)
        instance = self._instance(process, body, name)
        session = Session(
            session=SessionId(self._next_session),
            process=process.process,
            instance=instance,
            rank=body.rank,
            memory=body.memory,
            pools=pools,
            shards=body.namespace.shards_of_rank(body.rank),
            handle=PoolHandle(0),
        )
        self._next_session += 1
        self.sessions[session.session] = session
        process.sessions.add(session.session)
        instance.owner.sessions.add(session.session)
        instance.ranks[body.rank] = session
        pending = self._pending[session.session] = Registration(ticket)
        late = RequestError(ErrorCode.DEADLINE_EXCEEDED, "registering took too long")
        self._outbox.answer_by(ticket, WAIT_NS, partial(self._refuse, session, late))
        if isinstance(body.memory, MemfdMemory):
            process.pools.pop(PoolId(body.memory.pool))
            self._open_pool(session)
        self._want_extents(session, pending)
        self._advance_pending(session)

    def _check(self, process: Process, body: RegisterKvCache) -> dict[int, ShardPool]:
        namespace, memory = body.namespace, body.memory
        if body.rank >= namespace.num_ranks:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"rank {body.rank} is not within 0..{namespace.num_ranks - 1}",
            )
        if len(process.sessions) >= self._config.max_sessions_per_process:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"one process may register {self._config.max_sessions_per_process} times",
            )
        if (memory is None) != (not body.pools):
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT, "memory and pools come together or not at all"
            )
        if memory is None:
            return {}
        if not isinstance(memory, MemfdMemory):
            raise RequestError(ErrorCode.UNSUPPORTED, "this server copies from sealed memfds only")
        offered = process.pools.get(PoolId(memory.pool))
        if offered is None:
            raise RequestError(
                ErrorCode.POOL_INVALID,
                "the pool's descriptor was not passed over the side socket, or is in use",
            )
        if offered != memory.size_bytes:
            raise RequestError(
                ErrorCode.POOL_INVALID,
                f"the pool has {offered} bytes, not {memory.size_bytes}",
                pool_bytes=offered,
                stated_bytes=memory.size_bytes,
            )
        return _check_pools(body, offered)

    def _instance(self, process: Process, body: RegisterKvCache, name: Fingerprint) -> Instance:
        instance = self.instances.get(process.instance)
        if instance is None:
            owner = self.owners.get(name)
            if owner is None:
                owner = self._new_owner(body.namespace, name)
            instance = self.instances[process.instance] = Instance(process.instance, owner)
            return instance
        if instance.owner.fingerprint != name:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                "another rank of this engine registered another namespace",
            )
        if body.rank in instance.ranks:
            raise RequestError(
                ErrorCode.DUPLICATE,
                f"rank {body.rank} of this engine is registered already",
                session=instance.ranks[body.rank].session,
            )
        return instance

    def _new_owner(self, namespace: Namespace, name: Fingerprint) -> Owner:
        if len(self.owners) >= self._config.max_namespaces:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"at most {self._config.max_namespaces} namespaces are kept: CLEAR one",
            )
        groups = shard_groups(namespace)
        owner = Owner(
            fingerprint=name,
            namespace=namespace,
            index=ChunkIndex(self._arena.slots, ()),
            leaves=LeafLru(ChunkIndex(self._arena.slots, ()), 0),
            extents=[[] for _ in groups],
            readers_per_shard=tuple(
                namespace.num_ranks if namespace.groups[group].replicated else 1 for group in groups
            ),
            window_tokens=tuple(namespace.groups[group].window_tokens for group in groups),
        )
        self.renew_index(owner)
        self.owners[name] = owner
        return owner

    def renew_index(self, owner: Owner) -> None:
        """Gives an owner an empty index; what the old one named is cleared."""
        full = tuple(window == 0 for window in owner.window_tokens)
        owner.index = ChunkIndex(self._arena.slots, full)
        timeout_us = int(self._config.incomplete_timeout_s * 1_000_000)
        owner.leaves = LeafLru(owner.index, timeout_us)

    def _want_extents(self, session: Session, pending: Registration) -> None:
        owner = session.owner
        for shard in session.shards:
            if any(extent.phase is Phase.LIVE for extent in owner.extents[shard]):
                continue
            pending.missing.add(shard)
            if not self._growth.demand(owner, shard, partial(self._came, session, shard), True):
                self._refuse(session, self._no_room(session))
                return

    def _no_room(self, session: Session) -> RequestError:
        needed = sum(self._growth.needed_bytes(session.owner, one) for one in session.shards)
        return RequestError(
            ErrorCode.NO_ROOM,
            f"the arena has no room for one extent of each shard ({needed} bytes): make it "
            f"larger than {self._config.arena_bytes} bytes, or end another engine",
            needed_bytes=needed,
            arena_bytes=self._config.arena_bytes,
        )

    def _came(self, session: Session, shard: int, came: bool) -> None:
        pending = self._pending.get(session.session)
        if pending is None:
            return
        if not came:
            self._refuse(session, self._no_room(session))
            return
        pending.missing.discard(shard)
        self._advance_pending(session)

    def _advance_pending(self, session: Session) -> None:
        pending = self._pending.get(session.session)
        if pending is None or pending.missing:
            return
        if session.memory is not None and session.pool_state is not PoolState.OPEN:
            return
        del self._pending[session.session]
        session.is_ready = True
        owner = session.owner
        # One that is being emptied may stay after all; it is taken back like any other if not.
        extents = [
            extent
            for shard in session.shards
            for extent in owner.extents[shard]
            if extent.phase in (Phase.LIVE, Phase.EMPTYING)
        ]
        self._outbox.counters["registrations"] += 1
        self._outbox.reply(
            pending.ticket,
            RegisterKvCacheReply(
                session=session.session, fingerprint=owner.fingerprint, extents=len(extents)
            ),
        )
        for extent in extents:
            self._readers.give(extent, session)

    def _refuse(self, session: Session, error: KvkeepError) -> None:
        pending = self._pending.pop(session.session, None)
        if pending is None:
            return
        self._outbox.fail(pending.ticket, error)
        self.close(session, None, keep_offer=True)

    def extent_created(self, extent: ExtentId, error: str | None) -> None:
        """CreateExtent ended."""
        found = self._arena.extents.get(extent)
        if found is None:
            return
        ready = [
            session
            for number in found.owner.sessions
            if (session := self.sessions[number]).is_ready
        ]
        self._growth.created(extent, error, ready)
        self.shrink(found.owner)

    # --- the copier's mappings ------------------------------------------------------------

    def _open_pool(self, session: Session) -> None:
        assert isinstance(session.memory, MemfdMemory)
        self._by_handle.pop(session.handle, None)
        session.handle = PoolHandle(self._next_handle)
        self._next_handle += 1
        self._by_handle[session.handle] = session
        session.pool_state = PoolState.OPENING
        if self._window.is_up:
            self._outbox.add(
                OpenPool(
                    copier=HOST_COPIER,
                    handle=session.handle,
                    process=session.process,
                    pool=PoolId(session.memory.pool),
                    memory=session.memory,
                )
            )
        else:
            session.pool_state = PoolState.LOST

    def pool_opened(self, handle: PoolHandle, error: str | None) -> None:
        """OpenPool ended."""
        session = self._by_handle.get(handle)
        if session is None or session.pool_state is not PoolState.OPENING:
            return
        if error is None:
            session.pool_state = PoolState.OPEN
            self._advance_pending(session)
        else:
            session.pool_state = PoolState.NONE
            self._refuse(session, RequestError(ErrorCode.POOL_INVALID, error[:400]))
        self._advance_closing(session)

    def pool_closed(self, handle: PoolHandle) -> None:
        """ClosePool ended."""
        session = self._by_handle.get(handle)
        if session is not None and session.pool_state is PoolState.CLOSING:
            session.pool_state = PoolState.NONE
            self._advance_closing(session)

    def copier_lost(self) -> None:
        """The copier is gone, and its mappings with it."""
        self._window.lost()
        for session in list(self.sessions.values()):
            if session.pool_state is not PoolState.NONE:
                session.pool_state = PoolState.LOST
                self._advance_closing(session)

    def copier_ready(self) -> None:
        """The copier runs again: it is asked for every mapping."""
        self._window.is_up = True
        for session in self.sessions.values():
            if session.pool_state is PoolState.LOST and not session.is_closing:
                self._open_pool(session)

    # --- leaving --------------------------------------------------------------------------

    def exited(self, process: Process) -> None:
        """A process is gone: all of its sessions end."""
        for number in list(process.sessions):
            session = self.sessions[number]
            pending = self._pending.pop(number, None)
            if pending is not None:
                self._outbox.fail(
                    pending.ticket, RequestError(ErrorCode.UNKNOWN_SESSION, "the process exited")
                )
            self.close(session, None, keep_offer=False)

    def close(self, session: Session, ticket: Ticket | None, keep_offer: bool) -> None:
        """Ends a session; what it stored stays.

        Args:
            session: whose.
            ticket: an UNREGISTER to answer at the end.
            keep_offer: put its descriptor back among the offers.
        """
        closing = self._closing.setdefault(session.session, Closing())
        if ticket is not None:
            closing.tickets.append(ticket)
        closing.keep_offer = keep_offer
        if session.is_closing:
            return
        session.is_closing = True
        instance = session.instance
        instance.owner.sessions.discard(session.session)
        if instance.ranks.get(session.rank) is session:
            del instance.ranks[session.rank]
        if not instance.ranks:
            instance.owner.leaves.orphan(instance.instance)
            if self.instances.get(instance.instance) is instance:
                del self.instances[instance.instance]
        for extent in list(session.extents):
            self._readers.let_go(self._arena.extents[extent], session)
        for plan in list(session.stores.values()):
            self._plans.end(plan, RequestError(ErrorCode.UNKNOWN_SESSION, "the session was ended"))
        self._lanes.start(
            session.session,
            self._leases.reader_gone(instance, session.rank, session.session),
            self._plans.fault,
        )
        self._advance_closing(session)

    def _advance_closing(self, session: Session) -> None:
        if not session.is_closing or session.stores:
            return
        if session.pool_state is PoolState.OPEN:
            session.pool_state = PoolState.CLOSING
            self._outbox.add(ClosePool(HOST_COPIER, session.handle))
        if session.pool_state in (PoolState.NONE, PoolState.LOST):
            self._forget(session)

    def _forget(self, session: Session) -> None:
        closing = self._closing.pop(session.session, None)
        if closing is None:
            return
        del self.sessions[session.session]
        self._by_handle.pop(session.handle, None)
        process = self._peers.processes.get(session.process)
        if process is not None:
            process.sessions.discard(session.session)
        if isinstance(session.memory, MemfdMemory):
            pool = PoolId(session.memory.pool)
            if process is not None and closing.keep_offer:
                process.pools[pool] = session.memory.size_bytes
            else:
                self._outbox.add(DropPoolOffer(session.process, pool))
        for ticket in closing.tickets:
            self._outbox.reply(ticket, Done())
        if process is not None:
            self._peers.forget_if_over(process)
        self.shrink(session.owner)

    def shrink(self, owner: Owner) -> None:
        """Gives back the empty extents of an owner without engines, and forgets it at the end."""
        if owner.sessions:
            return
        for extents in owner.extents:
            for extent in list(extents):
                used = extent.num_reserved or len(extent.free) < extent.geometry.num_slots
                if extent.phase is Phase.LIVE and not used:
                    self._readers.take(extent)
        self._forget_if_over(owner)

    def _forget_if_over(self, owner: Owner) -> None:
        if owner.sessions or any(owner.extents) or self.owners.get(owner.fingerprint) is not owner:
            return
        del self.owners[owner.fingerprint]
        for shard in range(owner.num_shards):
            demand = self._growth.demands.get((owner.fingerprint, shard))
            if demand is not None:
                self._growth.give_up(demand)


def _check_pools(body: RegisterKvCache, memory_bytes: int) -> dict[int, ShardPool]:
    namespace = body.namespace
    mine = namespace.shards_of_rank(body.rank)
    pools: dict[int, ShardPool] = {}
    for pool in body.pools:
        if pool.shard not in mine or pool.shard in pools:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"shard {pool.shard} is named twice or is none of rank {body.rank}'s: "
                f"{', '.join(map(str, mine))}",
            )
        group = namespace.groups[namespace.group_of(pool.shard)]
        check_pool(pool, memory_bytes, group.page_bytes)
        pools[pool.shard] = pool
    return pools

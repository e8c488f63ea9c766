"""Registering: from a rank's offer to a session that may work.

Purpose: REGISTER_KV_CACHE is checked, then answered once the copier has the pool and each shard has
an extent, or refused with what is missing. Must not know: sockets, how extents are made, what an
end frees. Runs in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ExtentId, PoolId, SessionId
from protocol.layout import CudaIpcMemory, FileMemory, ShardPool, check_pool
from protocol.messages import RegisterKvCache, RegisterKvCacheReply
from protocol.namespace import fingerprint
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.config import SECOND_NS, CoreConfig
from server.core.departures import Departures
from server.core.effects import PoolHandle
from server.core.extents import Phase
from server.core.growth import Growth
from server.core.namespaces import PoolState, Session
from server.core.outbox import Outbox, Ticket
from server.core.peers import Process
from server.core.pools import Pools
from server.core.quarantine import Quarantine
from server.core.readers import Readers
from server.core.roster import Roster

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


class Registry:
    """Registrations under way.

    Args:
        config: settings.
        clock: current time.
        outbox: replies and effects.
        roster: owners, instances and sessions.
        arena: slots and extents.
        growth: new extents.
        readers: who is given them.
        pools: the copiers' mappings.
        departures: where refused sessions go.
        quarantine: knows what room will come.
    """

    def __init__(
        self,
        config: CoreConfig,
        clock: Clock,
        outbox: Outbox,
        roster: Roster,
        arena: Arena,
        growth: Growth,
        readers: Readers,
        pools: Pools,
        departures: Departures,
        quarantine: Quarantine,
    ) -> None:
        self._config = config
        self._clock = clock
        self._outbox = outbox
        self._roster = roster
        self._arena = arena
        self._growth = growth
        self._readers = readers
        self._pools = pools
        self._departures = departures
        self._quarantine = quarantine
        self._pending: dict[SessionId, Registration] = {}
        self._next_session = 1
        pools.came = self._pool_came

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
        instance = self._roster.instance_for(process, body, name)
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
        self._roster.sessions[session.session] = session
        process.sessions.add(session.session)
        instance.owner.sessions.add(session.session)
        if body.numa_node is not None:
            instance.owner.numa_nodes.update(dict.fromkeys(pools, body.numa_node))
        instance.ranks[body.rank] = session
        pending = self._pending[session.session] = Registration(ticket)
        late = RequestError(ErrorCode.DEADLINE_EXCEEDED, "registering took too long")
        self._outbox.answer_by(ticket, WAIT_NS, partial(self._refuse, session, late))
        if isinstance(body.memory, FileMemory):
            process.pools.pop(PoolId(body.memory.pool))
        if body.memory is not None:
            self._pools.join(process, session)
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
        self._pools.check_room(process, memory)
        if isinstance(memory, CudaIpcMemory):
            # What the handle really names, the copier checks before its first copy.
            return _check_pools(body, memory.size_bytes)
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
        if self._growth.trouble:
            return RequestError(
                ErrorCode.NO_ROOM,
                f"the server cannot make files for the arena now: {self._growth.trouble[:200]}",
                needed_bytes=needed,
                arena_bytes=self._config.arena_bytes,
            )
        limit_bytes = self._growth.limit_bytes(session.owner)
        if limit_bytes and needed > limit_bytes:
            return RequestError(
                ErrorCode.NO_ROOM,
                f"the namespace's limit of {limit_bytes} bytes leaves no room for one extent of "
                f"each shard ({needed} bytes): give it more with kvkeep quota set",
                needed_bytes=needed,
                limit_bytes=limit_bytes,
            )
        sealed = self._quarantine.sealed_bytes
        if sealed >= needed:
            return RequestError(
                ErrorCode.NO_ROOM,
                f"{sealed} bytes of the arena wait for processes of an earlier server, which "
                f"still have them mapped: try again; one extent of each shard needs {needed}",
                needed_bytes=needed,
                arena_bytes=self._config.arena_bytes,
                sealed_bytes=sealed,
            )
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
        # A device's reader page-locks one after the other, and may load from those it has so far.
        extents.sort(key=lambda extent: extent.used_us, reverse=True)
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
        self._departures.close(session, None, keep_offer=True)

    def _pool_came(self, session: Session, error: str | None) -> None:
        if error is None:
            self._advance_pending(session)
        else:
            memory, detail = session.memory, dict[str, str]()
            if isinstance(memory, CudaIpcMemory):
                detail["device"] = memory.device_uuid.hex()
            self._refuse(session, RequestError(ErrorCode.POOL_INVALID, error[:400], **detail))

    def extent_created(self, extent: ExtentId, error: str | None) -> None:
        """CreateExtent ended."""
        found = self._arena.extents.get(extent)
        if found is None:
            return
        ready = [
            session
            for number in found.owner.sessions
            if (session := self._roster.sessions[number]).is_ready
        ]
        self._growth.created(extent, error, ready)
        self._departures.shrink(found.owner)

    # --- leaving --------------------------------------------------------------------------

    def exited(self, process: Process) -> None:
        """A process is gone: all of its sessions end."""
        for number in list(process.sessions):
            session = self._roster.sessions[number]
            pending = self._pending.pop(number, None)
            if pending is not None:
                self._outbox.fail(
                    pending.ticket, RequestError(ErrorCode.UNKNOWN_SESSION, "the process exited")
                )
            self._departures.close(session, None, keep_offer=False)


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

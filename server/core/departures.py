"""Leaving: what ends with a session, and in which order.

Purpose: UNREGISTER is answered once no copy can touch the pool; an exit frees all of a rank's share
and keeps what it stored (design rule 5, B16); an owner without engines gives back its empty extents
and is forgotten with the last. Must not know: sockets, pidfds. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import ErrorCode, RequestError
from protocol.ids import PoolId, SessionId
from protocol.layout import FileMemory
from protocol.messages import Done
from server.core.admission import Lanes
from server.core.arena import Arena
from server.core.effects import DropNamespace, DropPoolOffer
from server.core.extents import Phase
from server.core.growth import Growth
from server.core.leases import Leases
from server.core.namespaces import Owner, PoolState, Session
from server.core.outbox import Outbox, Ticket
from server.core.peers import Peers
from server.core.plans import Plans
from server.core.pools import Pools
from server.core.readers import Readers
from server.core.roster import Roster


@dataclass
class Closing:
    """A session on its way out.

    Attributes:
        tickets: UNREGISTERs that await it.
        keep_offer: the descriptor goes back to the offers, so that REGISTER may be tried again.
    """

    tickets: list[Ticket] = field(default_factory=list)
    keep_offer: bool = False


class Departures:
    """Sessions on their way out.

    Args:
        roster: owners, instances and sessions.
        outbox: replies and effects.
        peers: processes and their offers.
        arena: slots and extents.
        growth: whose demands end with an owner.
        readers: who has which extent mapped.
        leases: what readers hold.
        plans: STOREs.
        lanes: long work.
        pools: the copiers' mappings.

    Attributes:
        leaving: called with a session that begins to leave.
    """

    def __init__(
        self,
        roster: Roster,
        outbox: Outbox,
        peers: Peers,
        arena: Arena,
        growth: Growth,
        readers: Readers,
        leases: Leases,
        plans: Plans,
        lanes: Lanes,
        pools: Pools,
    ) -> None:
        self._roster = roster
        self._outbox = outbox
        self._peers = peers
        self._arena = arena
        self._growth = growth
        self._readers = readers
        self._leases = leases
        self._plans = plans
        self._lanes = lanes
        self._pools = pools
        self._closing: dict[SessionId, Closing] = {}
        self.leaving: Callable[[Session], None] = lambda session: None
        plans.ended = self.advance
        pools.went = self.advance
        growth.removed = self._forget_if_over

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
            if self._roster.instances.get(instance.instance) is instance:
                del self._roster.instances[instance.instance]
        for extent in list(session.extents):
            self._readers.let_go(self._arena.extents[extent], session)
        self.leaving(session)
        for plan in list(session.stores.values()):
            self._plans.end(plan, RequestError(ErrorCode.UNKNOWN_SESSION, "the session was ended"))
        self._lanes.start(
            session.session,
            self._leases.reader_gone(instance, session.rank, session.session),
            self._plans.fault,
        )
        self.advance(session)

    def advance(self, session: Session) -> None:
        """Goes on with a session that leaves; nothing for others."""
        if not session.is_closing or session.stores:
            return
        if session.pool_state is PoolState.OPEN:
            self._pools.close(session)
        if session.pool_state in (PoolState.NONE, PoolState.LOST):
            self._forget(session)

    def _forget(self, session: Session) -> None:
        closing = self._closing.pop(session.session, None)
        if closing is None:
            return
        del self._roster.sessions[session.session]
        self._pools.forget(session)
        process = self._peers.processes.get(session.process)
        if process is not None:
            process.sessions.discard(session.session)
        if isinstance(session.memory, FileMemory):
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
        if owner.is_wanted:
            return
        for extents in owner.extents:
            for extent in list(extents):
                used = extent.num_reserved or len(extent.free) < extent.geometry.num_slots
                if extent.phase is Phase.LIVE and not used and not extent.sealed:
                    self._readers.take(extent)
        self._forget_if_over(owner)

    def _forget_if_over(self, owner: Owner) -> None:
        is_known = self._roster.owners.get(owner.fingerprint) is owner
        if owner.is_wanted or any(owner.extents) or not is_known:
            return
        del self._roster.owners[owner.fingerprint]
        self._outbox.add(DropNamespace(owner.fingerprint))
        for shard in range(owner.num_shards):
            demand = self._growth.demands.get((owner.fingerprint, shard))
            if demand is not None:
                self._growth.give_up(demand)

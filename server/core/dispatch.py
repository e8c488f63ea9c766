"""The core's face towards the shell: events in, effects out.

Must not know: sockets, files, clocks, threads. Runs in: the loop thread, and in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol import frames, limits
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, Epoch, ExtentId, Fingerprint, InstanceId, PoolId, Token
from protocol.messages import TRACED, VERSION_MAJOR, Body, Hello, HelloReply, Request
from protocol.quotas import QuotaChange
from protocol.status import OpLatency
from server.core.adoption import Adoption, Heritage, PartyId
from server.core.audit import audit
from server.core.config import CoreConfig, Outside
from server.core.effects import (
    CopierId,
    Effect,
    JobId,
    PeerId,
    PoolHandle,
    ProcessId,
    SendReply,
    TierId,
)
from server.core.handlers import Handlers
from server.core.integrity import IntegrityError
from server.core.outbox import Ticket
from server.core.peers import Dropped, Peer
from server.core.slots import Slots
from server.core.state import State
from server.core.tiers.parts import unpack_shares

__all__ = ["Core", "CoreConfig", "IntegrityError"]

CAPABILITIES = (
    "clear",
    "cuda-ipc",
    "delete",
    "delete-salt",
    "events",
    "inspect",
    "pin",
    "quotas",
    "stats",
    "status",
    "tenants",
    "warm",
)


class Core:
    """Every decision of the server.

    Args:
        config: settings.
        epoch: this incarnation.
        arena: the arena it serves.
        random_bytes: ``n`` to ``n`` unguessable bytes.
    """

    def __init__(
        self,
        config: CoreConfig,
        epoch: Epoch,
        arena: ArenaId,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._config = config
        self._state = State(config, epoch, arena, random_bytes)
        self._outbox = self._state.outbox
        self._peers = self._state.peers
        self._outbox.namespace = self._state.roster.namespace_of
        self._handlers = Handlers(self._state)

    def allot(self, wanted: Iterable[QuotaChange], kept: Iterable[QuotaChange]) -> list[str]:
        """Sets quotas; once, before ``adopt``, so that what is found counts for them.

        Args:
            wanted: as the settings have them.
            kept: as a predecessor kept them; what the settings have of the same tenant holds.

        Returns:
            Why some of the kept ones could not be set.

        Raises:
            RequestError: what the settings want cannot be.
        """
        for change in wanted:
            self._state.quotas.change(change)
        return self._state.allotment.restore(kept)

    # --- a predecessor's arena --------------------------------------------------------------

    def adopt(self, heritage: Heritage, now_ns: int) -> Adoption:
        """Takes over what a predecessor left; once, before any other event.

        The effects that follow concern kept extents and dropped namespaces only: the shell
        makes the kept extents' files known to itself before it performs them.

        Args:
            heritage: what was found.
            now_ns: current time, from which unfinished chunks are given their time again.

        Returns:
            What was kept, and what is to be unlinked.
        """
        self._state.clock.advance(now_ns)
        adoption = self._state.adopter.adopt(heritage)
        self._state.allotment.enforce()
        return adoption

    def party_gone(self, party: PartyId, now_ns: int) -> None:
        """A process of a former incarnation exited, or said that it touches nothing any more.

        Args:
            party: which; unknown ones and repetitions are ignored.
            now_ns: current time.
        """
        self._state.clock.advance(now_ns)
        self._state.quarantine.party_gone(party)

    # --- events from the shell -------------------------------------------------------------

    def process_joined(
        self, process: ProcessId, token: Token, instance: InstanceId, now_ns: int, pid: int = 0
    ) -> None:
        """A side connection said SideHello and got this token; ``pid`` is told to people only."""
        self._state.clock.advance(now_ns)
        self._peers.join(process, token, instance, now_ns, pid)

    def pool_offered(self, process: ProcessId, pool: PoolId, size_bytes: int) -> None:
        """A process passed a descriptor; the shell has checked its seals and size."""
        self._peers.offer(process, pool, size_bytes)

    def process_quiet(self, process: ProcessId, now_ns: int) -> None:
        """A side connection ended: no new work for its engine; frees nothing."""
        self._state.clock.advance(now_ns)
        entry = self._peers.processes.get(process)
        for session in entry.sessions if entry is not None else ():
            self._state.roster.sessions[session].is_quiet = True
        self._state.warming.gone(process)
        self._peers.quiet(process)

    def process_exited(self, process: ProcessId, now_ns: int) -> None:
        """A process is gone for certain: everything of it is freed."""
        self._state.clock.advance(now_ns)
        self._state.warming.gone(process)
        entry = self._peers.leave(process, gone=True)
        if entry is not None:
            self._state.registry.exited(entry)

    def request(self, peer: PeerId, frame: bytes, now_ns: int) -> None:
        """One frame of a ZMQ peer; exactly one reply will follow, here or later."""
        self._state.clock.advance(now_ns)
        op = seq = 0
        try:
            envelope = frames.unpack_request(frame)
            op, seq = envelope.op, envelope.seq
            known = self._peers.get(peer)
            session = known.session if known is not None else self._peers.stranger()
            session.admit(envelope, now_ns)
        except RequestError as error:
            self._outbox.refuse(peer, op, seq, error)
            return
        if known is not None:
            known.process.heard_ns = now_ns
        ticket = self._outbox.open(Ticket(peer, op, seq, envelope.deadline_ns, session, now_ns))
        self._outbox.counters["requests"] += 1
        try:
            ticket.body = body = frames.request_body(envelope)
            if self._config.traces and isinstance(body, TRACED):
                ticket.traceparent = body.traceparent
            reply = self._handle(known, body, ticket, now_ns)
            if reply is not None:
                self._outbox.reply(ticket, reply)
        except RequestError as error:
            self._outbox.fail(ticket, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the loop
            self._state.fault(error)
            failed = RequestError(ErrorCode.INTERNAL, "the server failed; its log says why")
            self._outbox.fail(ticket, failed)

    def took_long(self, reply: SendReply, spent_ns: int) -> None:
        """A reply went out later than ``SLOW_NS`` after its request came; STATUS tells of it."""
        self._state.slow.note(reply, spent_ns)

    def peer_dropped(self, peer: PeerId, is_closed: bool = False) -> Dropped:
        """A reply could not be delivered; the connection is forgotten: see ``Peers.drop``."""
        return self._peers.drop(peer, is_closed)

    def extent_created(self, extent: ExtentId, error: str | None, now_ns: int) -> None:
        """CreateExtent ended."""
        self._state.clock.advance(now_ns)
        self._state.registry.extent_created(extent, error)

    def pool_opened(self, handle: PoolHandle, error: str | None, now_ns: int) -> None:
        """OpenPool ended."""
        self._state.clock.advance(now_ns)
        self._state.pools.opened(handle, error)

    def pool_closed(self, handle: PoolHandle, now_ns: int) -> None:
        """ClosePool ended."""
        self._state.clock.advance(now_ns)
        self._state.pools.closed(handle)

    def copy_done(self, job: JobId, error: str | None, now_ns: int) -> None:
        """StartCopy ended."""
        self._state.clock.advance(now_ns)
        self._state.copiers.done(job, error)

    def copier_lost(self, copier: CopierId, now_ns: int) -> None:
        """A copier is gone: its jobs failed and its mappings do not exist any more."""
        self._state.clock.advance(now_ns)
        self._state.pools.copier_lost(copier)

    def copier_stuck(self, copier: CopierId, life: int, now_ns: int) -> None:
        """A copier was killed and does not die: its jobs failed, their slots wait for its end."""
        self._state.clock.advance(now_ns)
        self._state.pools.copier_stuck(copier, life)

    def copier_gone(self, copier: CopierId, life: int, now_ns: int) -> None:
        """A stuck copier is seen dead at last: nothing of it touches memory any more."""
        self._state.clock.advance(now_ns)
        self._state.pools.copier_gone(copier, life)

    def copier_ready(self, copier: CopierId, now_ns: int) -> None:
        """A copier has (re)started: mappings are asked again."""
        self._state.clock.advance(now_ns)
        self._state.pools.copier_ready(copier)

    def copier_refused(self, copier: CopierId, reason: str, now_ns: int) -> None:
        """A copier could not be started, as ``reason`` says; if it is kept, it is tried again."""
        self._state.clock.advance(now_ns)
        self._state.pools.copier_refused(copier, reason)

    def copier_ended(self, copier: CopierId, now_ns: int) -> None:
        """A device's copier is gone and nobody starts it again: StopCopier ended."""
        self._state.clock.advance(now_ns)
        self._state.pools.copier_ended(copier)

    # --- events of tiers' porters ---------------------------------------------------------

    def porter_ready(self, tier: TierId, used_bytes: int, capacity_bytes: int, now_ns: int) -> None:
        """A tier's porter has (re)started and opened it.

        Args:
            tier: which.
            used_bytes: taken, as far as the tier knows.
            capacity_bytes: of the whole, 0 for unknown.
            now_ns: current time.
        """
        self._state.clock.advance(now_ns)
        self._state.tiers.porter_ready(tier, used_bytes, capacity_bytes)

    def porter_refused(self, tier: TierId, now_ns: int, why: str = "") -> None:
        """A tier's porter could not open it; that is tried again. ``why`` shows no credentials."""
        self._state.clock.advance(now_ns)
        self._state.tiers.porter_refused(tier, why)

    def porter_said(self, tier: TierId, text: str, now_ns: int) -> None:
        """A tier's porter complained, in one line without credentials."""
        self._state.clock.advance(now_ns)
        self._state.tiers.porter_said(tier, text)

    def porter_lost(self, tier: TierId, now_ns: int) -> None:
        """A tier's porter is gone: its jobs failed, and it touches no memory any more."""
        self._state.clock.advance(now_ns)
        self._state.tiers.porter_lost(tier)

    def porter_stuck(self, tier: TierId, life: int, now_ns: int) -> None:
        """A porter was killed and does not die: its jobs failed, their slots wait for its end."""
        self._state.clock.advance(now_ns)
        self._state.tiers.porter_stuck(tier, life)

    def porter_gone(self, tier: TierId, life: int, now_ns: int) -> None:
        """A stuck porter is seen dead at last: nothing of it touches memory any more."""
        self._state.clock.advance(now_ns)
        self._state.tiers.porter_gone(tier, life)

    def tier_probed(self, job: JobId, count: int | None, now_ns: int) -> None:
        """TierProbe ended: so many leading chunks are there; None for an error."""
        self._state.clock.advance(now_ns)
        self._state.tiers.probed(job, count)

    def tier_done(self, job: JobId, statuses: bytes | None, now_ns: int) -> None:
        """TierGet, TierPut, TierDrop, TierKeep, TierTouch or TierList ended.

        Args:
            job: which; jobs nobody knows (any more) are ignored.
            statuses: a ``Status`` per part, none of a TierDrop or TierKeep, of a TierList what it
                lists; None when all of it failed.
            now_ns: current time.
        """
        self._state.clock.advance(now_ns)
        self._state.tiers.done(job, statuses)

    def tier_health(
        self,
        job: JobId,
        ok: bool,
        used_bytes: int,
        capacity_bytes: int,
        now_ns: int,
        shares: bytes = b"",
        warning: str = "",
    ) -> None:
        """TierHealth ended; as for ``porter_ready``, bytes by tenant, packed, and for STATUS."""
        self._state.clock.advance(now_ns)
        room = used_bytes, capacity_bytes
        self._state.tiers.checked(job, ok, *room, *unpack_shares(shares), warning)

    def salt_found(self, search: int, slots: Slots, generations: Slots, now_ns: int) -> None:
        """FindSalt ended: slots of the extent, and the generations of their records."""
        self._state.clock.advance(now_ns)
        self._state.operations.salts.found(search, slots, generations)

    def tier_moves(self, tier: TierId, now_ns: int) -> None:
        """A tier's porter gets on with what it was asked, though nothing of it has ended."""
        self._state.clock.advance(now_ns)
        self._state.tiers.moves(tier)

    def owes(
        self, tier: TierId, fingerprint: Fingerprint, shards: int, keys: bytes, now_ns: int
    ) -> None:
        """What KeepOwed of a former server wrote down; before any request.

        Args:
            tier: which is still to forget.
            fingerprint: of the namespace.
            shards: parts of each chunk.
            keys: 16 bytes per chunk; empty for all of the namespace.
            now_ns: current time.
        """
        self._state.clock.advance(now_ns)
        self._state.forgetting.owes(tier, fingerprint, shards, keys)

    def owed_kept(self, tier: TierId, fingerprint: Fingerprint, serial: int, now_ns: int) -> None:
        """KeepOwed ended, well or not."""
        self._state.clock.advance(now_ns)
        self._state.forgetting.kept(tier, fingerprint, serial)

    def tick(self, now_ns: int) -> None:
        """Deadlines and expiry; call it when ``next_timer_ns`` has come."""
        self._state.clock.advance(now_ns)
        self._state.timers.run_due()

    def work(self, now_ns: int) -> bool:
        """One slice of pending long work.

        Returns:
            Whether more is pending.
        """
        self._state.clock.advance(now_ns)
        return self._state.lanes.step()

    def next_timer_ns(self) -> int | None:
        """When ``tick`` has something to do, or None."""
        return self._state.timers.next_ns()

    def take_effects(self) -> list[Effect]:
        """What to do now, in order."""
        return self._outbox.take()

    def take_faults(self) -> list[str]:
        """Tracebacks of faults of our own since the last call, at most 16, for the log."""
        taken, self._state.faults = self._state.faults, []
        return taken

    def begin_drain(self, now_ns: int) -> None:
        """Refuses new STORE, LOOKUP and REGISTER_KV_CACHE from now on."""
        self._state.clock.advance(now_ns)
        self._state.draining = True
        self._state.prefetches.drain()
        self._state.warming.drain()
        self._state.following.drain()

    def drained(self) -> bool:
        """Whether no reply is owed, no copy is in flight, and tiers have what waits for them."""
        state = self._state
        is_idle = not state.outbox.num_owed and state.lanes.is_idle and state.copiers.is_idle
        return is_idle and state.demotion.is_idle

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name."""
        return self._state.stats()

    def tell_more(self, figures: Callable[[], dict[str, int]]) -> None:
        """Has STATS tell further figures.

        Args:
            figures: asked in the loop thread; names that the core does not use.
        """
        self._state.more_figures.append(figures)

    def tell_latency(self, latency: Callable[[], dict[str, OpLatency]]) -> None:
        """Has STATUS tell how long answers take, which only who sends them can measure.

        Args:
            latency: asked in the loop thread; by name of the operation.
        """
        self._state.latency = latency

    def tell_outside(self, outside: Callable[[], Outside]) -> None:
        """Has STATUS tell what only who runs the core knows.

        Args:
            outside: asked in the loop thread.
        """
        self._state.outside = outside

    def accounted_bytes(self) -> int:
        """Memory that what is held, and who is here, may take at most. Any thread may ask."""
        return self._state.accounted_bytes()

    def check_integrity(self) -> None:
        """Recomputes everything from scratch.

        Raises:
            IntegrityError: names what is inconsistent.
        """
        audit(self._state)

    # --- requests -----------------------------------------------------------------------------

    def _handle(self, peer: Peer | None, body: Request, ticket: Ticket, now_ns: int) -> Body | None:
        if isinstance(body, Hello):
            return self._hello(body, ticket, now_ns)
        assert peer is not None  # admit() lets only HELLO through for a stranger
        return self._handlers.handle(peer.process, body, ticket)

    def _hello(self, hello: Hello, ticket: Ticket, now_ns: int) -> HelloReply:
        return HelloReply(
            epoch=self._state.epoch,
            arena=self._state.arena_id,
            now_ns=now_ns,
            major=VERSION_MAJOR,
            minor=self._peers.greet(ticket.peer, hello, ticket.session),
            capabilities=CAPABILITIES + (("traces",) if self._config.traces else ()),
            max_blocks=limits.MAX_BLOCKS_PER_MESSAGE,
            max_frame_bytes=limits.MAX_FRAME_BYTES,
            heartbeat_s=self._config.heartbeat_s,
        )

"""One method per operation: checks a request's references and hands it to the room it concerns.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ID_BYTES, ExtentId, RequestKey, SessionId, StoreId
from protocol.layout import unpack_pages
from protocol.limits import MAX_SLOTS_PER_REPLY, MAX_STORES_PER_SESSION, MAX_U32
from protocol.messages import (
    Body,
    Cancel,
    Clear,
    Commit,
    Delete,
    Done,
    EndSession,
    Heartbeat,
    HeartbeatReply,
    Inspect,
    Lookup,
    LookupReply,
    Mapped,
    Op,
    Pin,
    Ping,
    QueryPrefetchStatus,
    RegisterKvCache,
    Release,
    Released,
    Request,
    Retrieve,
    RetrieveReply,
    Stats,
    StatsReply,
    Store,
    Unpin,
    Unregister,
)
from server.core.admission import MORE, Steps
from server.core.leases import Lease, slice_chunks
from server.core.lookups import Match
from server.core.namespaces import PoolState, Session
from server.core.outbox import Ticket
from server.core.peers import Process
from server.core.registry import WAIT_NS
from server.core.state import State
from server.core.stores import Stage, StorePlan

R = TypeVar("R", bound=Request)

_NEW_WORK = frozenset({Op.REGISTER_KV_CACHE, Op.LOOKUP, Op.STORE, Op.RETRIEVE})
"""What a process whose side connection ended may not begin any more."""

_DRAINED = frozenset({Op.REGISTER_KV_CACHE, Op.LOOKUP, Op.STORE})
"""What a server that is about to end does not begin any more."""


class Handlers:
    """All operations but HELLO.

    Args:
        state: every room of the core.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._table: dict[type[Request], Callable[[Process, Any, Ticket], Body | None]] = {
            Ping: lambda process, body, ticket: Done(),
            Stats: lambda process, body, ticket: StatsReply(values=state.stats()),
            RegisterKvCache: self._register,
            Mapped: self._mapped,
            Unregister: self._unregister,
            Heartbeat: self._heartbeat,
            Lookup: self._lookup,
            QueryPrefetchStatus: self._query,
            Retrieve: self._retrieve,
            Release: self._release,
            EndSession: self._end_session,
            Store: self._store,
            Commit: self._commit,
            Cancel: self._cancel,
            Clear: self._clear,
            Delete: self._delete,
            Inspect: self._inspect,
            Pin: self._pin,
            Unpin: self._unpin,
        }

    def handle(self, process: Process, body: Request, ticket: Ticket) -> Body | None:
        """Serves a request.

        Args:
            process: who asks.
            body: what.
            ticket: the owed reply.

        Returns:
            The reply, or None when it comes later.

        Raises:
            RequestError: the reply instead.
        """
        if process.quiet and body.op in _NEW_WORK:
            raise RequestError(
                ErrorCode.UNAUTHENTICATED, "the side connection ended: connect it again"
            )
        if self._state.draining and body.op in _DRAINED:
            raise RequestError(ErrorCode.DRAINING, "the server is about to end")
        return self._table[type(body)](process, body, ticket)

    # --- references -----------------------------------------------------------------------

    def _of_instance(self, process: Process, number: int) -> Session:
        session = self._state.roster.sessions.get(SessionId(number))
        if (
            session is None
            or not session.is_ready
            or session.is_closing
            or session.instance.instance != process.instance
        ):
            raise RequestError(ErrorCode.UNKNOWN_SESSION, f"no session {number}: register again")
        return session

    def _of_process(self, process: Process, number: int) -> Session:
        session = self._of_instance(process, number)
        if session.process != process.process:
            raise RequestError(ErrorCode.UNKNOWN_SESSION, f"session {number} is another process's")
        return session

    def _sliced(self, ticket: Ticket, lane: SessionId, steps: Steps) -> None:
        """Runs long work whose errors are the reply, and whose deadline is checked per slice."""
        state = self._state

        def guarded() -> Steps:
            for pause in steps:
                yield pause
                if ticket.expired(state.clock.now_ns) and not ticket.done:
                    steps.close()
                    raise RequestError(ErrorCode.DEADLINE_EXCEEDED, "the request took too long")

        state.lanes.start(lane, guarded(), partial(self._failed, ticket))

    def _in_slices(self, ticket: Ticket, lane: SessionId, steps: Steps) -> None:
        """Runs long work that goes on to its end whether or not somebody waits for the answer."""
        self._await(ticket)
        self._state.lanes.start(lane, steps, partial(self._failed, ticket))

    def _failed(self, ticket: Ticket, error: Exception) -> None:
        if not isinstance(error, KvkeepError):
            self._state.fault(error)
            error = RequestError(ErrorCode.INTERNAL, "the server failed; its log says why")
        self._state.outbox.fail(ticket, error)

    def _await(self, ticket: Ticket) -> None:
        """For work that goes on to its end whether or not somebody waits for the answer."""
        outbox = self._state.outbox
        outbox.answer_by(ticket, WAIT_NS, partial(outbox.expire, ticket))

    # --- engines --------------------------------------------------------------------------

    def _register(self, process: Process, body: RegisterKvCache, ticket: Ticket) -> None:
        self._state.registry.register(process, body, ticket)

    def _mapped(self, process: Process, body: Mapped, ticket: Ticket) -> Done:
        session = self._of_process(process, body.session)
        readers = self._state.readers
        for extent in _u32(body.mapped):
            readers.mapped(session, ExtentId(extent))
        for extent in _u32(body.unmapped):
            readers.unmapped(session, ExtentId(extent))
        return Done()

    def _unregister(self, process: Process, body: Unregister, ticket: Ticket) -> None:
        session = self._of_instance(process, body.session)
        owner = self._state.peers.processes.get(session.process)
        if session.process != process.process and (owner is None or not owner.quiet):
            # A process whose side connection broke comes back as another one: only it, or a rank
            # of its own engine, may end what it registered before.
            raise RequestError(
                ErrorCode.UNKNOWN_SESSION, f"session {body.session} is another process's"
            )
        self._await(ticket)
        self._state.departures.close(session, ticket, keep_offer=False)

    def _heartbeat(self, process: Process, body: Heartbeat, ticket: Ticket) -> HeartbeatReply:
        session = self._of_instance(process, body.session)
        if len(body.requests) % 8:
            raise RequestError(
                ErrorCode.COUNT_MISMATCH,
                f"{len(body.requests)} bytes are no whole number of 8-byte request keys",
            )
        live = frozenset(struct.unpack(f"<{len(body.requests) // 8}Q", body.requests))
        for request in [key for key in session.instance.requests if key not in live]:
            self._state.leases.end_request(session.instance, request)
        return HeartbeatReply(epoch=self._state.epoch)

    # --- reading --------------------------------------------------------------------------

    def _lookup(self, process: Process, body: Lookup, ticket: Ticket) -> LookupReply | None:
        session = self._of_instance(process, body.session)
        _check_keys(body.keys, body.start)
        state = self._state
        state.outbox.counters["lookups"] += 1
        match = state.lookups.quick(session, body.keys, body.start)
        if match is not None:
            return self._leased(session, body, match)

        def found(match: Match) -> None:
            state.outbox.reply(ticket, self._leased(session, body, match))

        self._sliced(
            ticket,
            session.session,
            state.lookups.slow(session, body.keys, body.start, found),
        )
        return None

    def _leased(self, session: Session, body: Lookup, match: Match) -> LookupReply:
        state = self._state
        if session.is_closing:
            raise RequestError(ErrorCode.UNKNOWN_SESSION, "the session ended meanwhile")
        lease = state.lookups.lease(session, RequestKey(body.request), body.start, match)
        state.outbox.counters["lookup_chunks"] += len(body.keys) // ID_BYTES
        state.outbox.counters["hit_chunks"] += match.count
        return LookupReply(lease=lease.lease if lease is not None else b"", ready=match.count)

    def _query(self, process: Process, body: QueryPrefetchStatus, ticket: Ticket) -> LookupReply:
        # Nothing is ever on its way into L1 yet, so the answer is final at once.
        session = self._of_instance(process, body.session)
        lease = session.instance.requests.get(RequestKey(body.request))
        if lease is None:
            return LookupReply(lease=b"", ready=0)
        return LookupReply(lease=lease.lease, ready=lease.ready)

    def _lease(self, session: Session, lease_id: bytes) -> Lease:
        lease = self._state.leases.get(session.instance, lease_id)
        if lease is None:
            raise RequestError(ErrorCode.UNKNOWN_LEASE, "no such lease of this engine")
        return lease

    def _retrieve(self, process: Process, body: Retrieve, ticket: Ticket) -> Body | None:
        session = self._of_instance(process, body.session)
        lease, state = self._lease(session, body.lease), self._state
        first, num_shards = body.start - lease.start, session.owner.num_shards
        if first < 0 or first + body.count > lease.ready:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"chunks {body.start} to {body.start + body.count - 1} are not within the lease's "
                f"{lease.start} to {lease.start + lease.ready - 1}",
            )
        if body.count * num_shards > MAX_SLOTS_PER_REPLY:
            raise RequestError(
                ErrorCode.TOO_LARGE,
                f"at most {MAX_SLOTS_PER_REPLY // num_shards} chunks of {num_shards} shards fit "
                "one reply",
            )

        def done(slots: bytes) -> None:
            state.outbox.counters["retrieved_chunks"] += body.count
            state.outbox.reply(ticket, RetrieveReply(slots=slots, num_shards=num_shards))

        if state.leases.is_retrieved(lease, first, body.count):
            done(state.leases.descriptors(lease, first, body.count))
            return None
        self._sliced(
            ticket,
            session.session,
            state.leases.retrieve(lease, first, body.count, done),
        )
        return None

    def _release(self, process: Process, body: Release, ticket: Ticket) -> Released | None:
        session = self._of_process(process, body.session)
        leases = self._state.leases
        lease = leases.get(session.instance, body.lease)
        if lease is None:
            return Released(chunks=0)
        first = max(0, body.start - lease.start) if body.count else 0
        stop = body.start + body.count - lease.start if body.count else lease.ready
        stop, ended = min(stop, lease.ready), 0
        if body.all_readers and first == 0 and stop == lease.ready:
            ended = leases.end_unretrieved(lease)
        ranks = range(session.owner.namespace.num_ranks) if body.all_readers else (session.rank,)
        if (stop - first) * len(ranks) <= slice_chunks(lease):
            ended += sum(leases.release(lease, rank, first, stop - first) for rank in ranks)
            return Released(chunks=ended)
        self._in_slices(
            ticket, session.session, self._give_back(lease, ranks, first, stop, ended, ticket)
        )
        return None

    def _give_back(
        self, lease: Lease, ranks: Sequence[int], first: int, stop: int, ended: int, ticket: Ticket
    ) -> Steps:
        yield MORE
        more = yield from self._state.leases.give_back(lease, ranks, first, stop - first)
        self._state.outbox.reply(ticket, Released(chunks=ended + more))

    def _end_session(self, process: Process, body: EndSession, ticket: Ticket) -> Released:
        session = self._of_instance(process, body.session)
        ended = self._state.leases.end_request(session.instance, RequestKey(body.request))
        return Released(chunks=ended)

    # --- writing --------------------------------------------------------------------------

    def _store(self, process: Process, body: Store, ticket: Ticket) -> None:
        session = self._of_process(process, body.session)
        num_chunks = _check_keys(body.keys, body.start)
        pool = session.pools.get(body.shard)
        if pool is None:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"this session registered no pages of shard {body.shard}; it has "
                f"{', '.join(map(str, session.pools)) or 'none'}",
            )
        if len(body.parent) != (ID_BYTES if body.start else 0):
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                "parent has 16 bytes, or none when the chain starts here",
            )
        pages = unpack_pages(body.pages, pool.num_pages)
        wanted = num_chunks * session.owner.namespace.chunk_blocks
        if pages.size != wanted:
            raise RequestError(
                ErrorCode.COUNT_MISMATCH,
                f"{num_chunks} chunks need {wanted} pages, {pages.size} are named",
                chunks=num_chunks,
                pages=int(pages.size),
            )
        self._check_store(session, body)
        self._state.plans.begin(
            StorePlan(
                store=StoreId(body.store),
                session=session,
                shard=body.shard,
                index=session.owner.index,
                start=body.start,
                parent_key=body.parent,
                keys=body.keys,
                pages=pages,
                ticket=ticket,
            )
        )

    def _check_store(self, session: Session, body: Store) -> None:
        if StoreId(body.store) in session.stores:
            raise RequestError(ErrorCode.DUPLICATE, f"store {body.store} is under way")
        if len(session.stores) >= MAX_STORES_PER_SESSION:
            raise RequestError(
                ErrorCode.BUSY, f"at most {MAX_STORES_PER_SESSION} STOREs may await their end"
            )
        if session.pool_state is not PoolState.OPEN or not self._state.window.is_up:
            raise RequestError(ErrorCode.UNAVAILABLE, "the copier is starting again")

    def _commit(self, process: Process, body: Commit, ticket: Ticket) -> None:
        session = self._of_process(process, body.session)
        plan = session.stores.get(StoreId(body.store))
        if plan is None or plan.stage in (Stage.COMMITTING, Stage.ENDING):
            raise RequestError(
                ErrorCode.UNKNOWN_STORE, f"store {body.store} awaits no COMMIT of this session"
            )
        if plan.stage is Stage.COPYING:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT, f"store {body.store} was not answered yet"
            )
        if body.count > plan.good:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"{body.count} chunks to commit, {plan.good} were copied",
                copied=plan.good,
            )
        self._state.plans.commit(plan, body.count, ticket)

    def _cancel(self, process: Process, body: Cancel, ticket: Ticket) -> Done | None:
        session = self._of_process(process, body.session)
        plan = session.stores.get(StoreId(body.store))
        if plan is None:
            return Done()
        self._await(ticket)
        self._state.plans.cancel(plan, ticket)
        return None

    # --- operators ------------------------------------------------------------------------

    def _clear(self, process: Process, body: Clear, ticket: Ticket) -> None:
        operations = self._state.operations
        if body.fingerprint:
            owners = [operations.owner(body.fingerprint)]
        else:
            owners = list(self._state.roster.owners.values())
        self._await(ticket)
        operations.clear(owners, ticket)

    def _delete(self, process: Process, body: Delete, ticket: Ticket) -> None:
        operations = self._state.operations
        _check_keys(body.keys, 0)
        owner = operations.owner(body.fingerprint)
        self._await(ticket)
        operations.delete(owner, body.keys, ticket)

    def _inspect(self, process: Process, body: Inspect, ticket: Ticket) -> Body:
        operations = self._state.operations
        _check_keys(body.keys, 0)
        return operations.inspect(operations.owner(body.fingerprint), body.keys)

    def _pin(self, process: Process, body: Pin, ticket: Ticket) -> Body:
        state = self._state
        _check_keys(body.keys, 0)
        owner = state.operations.owner(body.fingerprint)
        return state.operations.pin(owner, body.keys, body.ttl_s, state.clock.now_ns)

    def _unpin(self, process: Process, body: Unpin, ticket: Ticket) -> Body:
        operations = self._state.operations
        _check_keys(body.keys, 0)
        return operations.unpin(operations.owner(body.fingerprint), body.keys)


def _check_keys(keys: bytes, start: int) -> int:
    count, ragged = divmod(len(keys), ID_BYTES)
    if ragged:
        raise RequestError(
            ErrorCode.COUNT_MISMATCH, f"{len(keys)} bytes are no whole number of 16-byte keys"
        )
    if start + count > MAX_U32 // 2:
        raise RequestError(
            ErrorCode.INVALID_ARGUMENT, f"a chain has fewer than {MAX_U32 // 2} chunks"
        )
    return count


def _u32(blob: bytes) -> tuple[int, ...]:
    if len(blob) % 4:
        raise RequestError(
            ErrorCode.COUNT_MISMATCH, f"{len(blob)} bytes are no whole number of extent ids"
        )
    return struct.unpack(f"<{len(blob) // 4}I", blob)

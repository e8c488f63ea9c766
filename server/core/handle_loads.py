"""Requests about loading: what is held, the right to read it, giving that back.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, RequestKey
from protocol.limits import MAX_SLOTS_PER_REPLY
from protocol.messages import (
    Body,
    EndSession,
    Lookup,
    LookupReply,
    QueryPrefetchStatus,
    Release,
    Released,
    Retrieve,
    RetrieveReply,
)
from server.core.admission import MORE, Steps
from server.core.desk import Desk, Table, check_keys, check_tenant
from server.core.lease import Lease, slice_chunks
from server.core.lookups import Match
from server.core.namespaces import Session
from server.core.outbox import Ticket
from server.core.peers import Process
from server.core.tallies import HIT_L1, LOADED, REQUESTED


class LoadHandlers:
    """LOOKUP, QUERY_PREFETCH_STATUS, RETRIEVE, RELEASE, END_SESSION.

    Args:
        desk: references and answers.

    Attributes:
        table: handler of each request.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._state = desk.state
        self._state.prefetches.sliced = lambda ticket, session, steps: desk.sliced(
            ticket, session.session, steps
        )
        self.table: Table = {
            Lookup: self._lookup,
            QueryPrefetchStatus: self._query,
            Retrieve: self._retrieve,
            Release: self._release,
            EndSession: self._end_session,
        }

    def _lookup(self, process: Process, body: Lookup, ticket: Ticket) -> LookupReply | None:
        session = self._desk.of_instance(process, body.session)
        check_keys(body.keys, body.start)
        check_tenant(body.tenant)
        state = self._state
        state.outbox.counters["lookups"] += 1
        match = state.lookups.quick(session, body.keys, body.start)
        if match is not None:
            return self._leased(session, body, match)

        def found(match: Match) -> None:
            state.outbox.reply(ticket, self._leased(session, body, match))

        self._desk.sliced(
            ticket,
            session.session,
            state.lookups.slow(session, body.keys, body.start, found),
        )
        return None

    def _leased(self, session: Session, body: Lookup, match: Match) -> LookupReply:
        state, request = self._state, RequestKey(body.request)
        if session.is_closing:
            raise RequestError(ErrorCode.UNKNOWN_SESSION, "the session ended meanwhile")
        if state.prefetches.by_instance:
            state.prefetches.end_request(session.instance, request)
        lease = state.lookups.lease(session, request, body.start, match)
        num_chunks, pending = len(body.keys) // ID_BYTES, 0
        counters, chunk_tokens = state.outbox.counters, session.owner.chunk_tokens
        counters["lookup_chunks"] += num_chunks
        counters["hit_chunks"] += match.count
        counters[REQUESTED] += num_chunks * chunk_tokens
        counters[HIT_L1] += match.count * chunk_tokens
        session.requested_chunks += num_chunks
        if match.count:
            session.hit_chunks += match.count
            state.lookups.heat.note(session.owner, body.start, body.keys, match.count)
            session.instance.owner.used_ns = state.clock.now_ns
        if match.count < num_chunks:
            pending = state.prefetches.begin(
                session, request, body.start, body.keys, match.count, body.tenant
            )
        return LookupReply(
            lease=lease.lease if lease is not None else b"",
            ready=match.count,
            pending=pending,
            final=not pending,
        )

    def _query(
        self, process: Process, body: QueryPrefetchStatus, ticket: Ticket
    ) -> LookupReply | None:
        session = self._desk.of_instance(process, body.session)
        request = RequestKey(body.request)
        prefetch = self._state.prefetches.get(session.instance, request)
        if prefetch is not None:
            self._state.prefetches.query(prefetch, body.wait_ms, ticket)
            return None
        # Nothing is on its way for it, so the answer is final at once.
        lease = session.instance.requests.get(request)
        if lease is None:
            return LookupReply(lease=b"", ready=0)
        return LookupReply(lease=lease.lease, ready=lease.ready)

    def _lease(self, session: Session, lease_id: bytes) -> Lease:
        lease = self._state.leases.get(session.instance, lease_id)
        if lease is None:
            raise RequestError(ErrorCode.UNKNOWN_LEASE, "no such lease of this engine")
        return lease

    def _retrieve(self, process: Process, body: Retrieve, ticket: Ticket) -> Body | None:
        session = self._desk.of_instance(process, body.session)
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
            fresh = lease.tally.load(first, body.count)
            state.outbox.counters[LOADED] += fresh * session.owner.chunk_tokens
            state.outbox.reply(ticket, RetrieveReply(slots=slots, num_shards=num_shards))

        if state.leases.is_retrieved(lease, first, body.count):
            done(state.leases.descriptors(lease, first, body.count))
            return None
        self._desk.sliced(
            ticket,
            session.session,
            state.leases.retrieve(lease, first, body.count, done),
        )
        return None

    def _release(self, process: Process, body: Release, ticket: Ticket) -> Released | None:
        session = self._desk.of_process(process, body.session)
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
        self._desk.in_slices(
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
        session = self._desk.of_instance(process, body.session)
        self._state.prefetches.end_request(session.instance, RequestKey(body.request))
        ended = self._state.leases.end_request(session.instance, RequestKey(body.request))
        return Released(chunks=ended)

"""Requests of operators: how all is, and about whole namespaces and prefixes.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.ids import Fingerprint
from protocol.limits import MAX_TEXT_CHARS
from protocol.messages import (
    Body,
    Clear,
    Delete,
    DeleteSalt,
    Inspect,
    InspectReply,
    Pin,
    Quotas,
    QuotasReply,
    Request,
    Stats,
    StatsReply,
    Status,
    StatusReply,
    Unpin,
    WarmCancel,
    WarmReply,
    WarmStatus,
    WarmStatusReply,
)
from protocol.messages import Warm as WarmRequest
from server.core.desk import Desk, Handler, Table, check_keys
from server.core.lookups import Match
from server.core.namespaces import Owner
from server.core.operations import LANE
from server.core.outbox import Ticket
from server.core.peers import Process
from server.core.status import Collection
from server.core.tiers.holding import Holding
from server.core.tiers.warm import Warm


class OperatorHandlers:
    """STATS, STATUS, QUOTAS, CLEAR, DELETE and DELETE_SALT, INSPECT, PIN, UNPIN, WARM and its like.

    Args:
        desk: references and answers.

    Attributes:
        table: handler of each request.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._state = desk.state
        self._holding = Holding(self._state.tiers, self._state.timers)
        handlers: Table = {
            Stats: lambda process, body, ticket: StatsReply(values=self._state.stats()),
            Status: self._status,
            Quotas: self._quotas,
            Clear: self._clear,
            Delete: self._delete,
            DeleteSalt: self._delete_salt,
            Inspect: self._inspect,
            Pin: self._pin,
            Unpin: self._unpin,
            WarmRequest: self._warm,
            WarmStatus: self._warm_status,
            WarmCancel: self._warm_cancel,
        }
        self.table: Table = {kind: _of_operator(handle) for kind, handle in handlers.items()}

    def _status(self, process: Process, body: Status, ticket: Ticket) -> None:
        def done(reply: StatusReply) -> None:
            self._state.outbox.reply(ticket, reply)

        # A lane for each who asks: they take turns with each other and with all else.
        lane = (LANE, process.process)
        self._desk.sliced(ticket, lane, Collection(self._state).collect(done))

    def _quotas(self, process: Process, body: Quotas, ticket: Ticket) -> Body:
        state = self._state
        if body.change is not None:
            state.allotment.change(body.change)
        rows = state.quotas.rows(state.roster.owners, state.tiers.tiers)
        return QuotasReply(arena_bytes=state.config.arena_bytes, quotas=rows)

    def _clear(self, process: Process, body: Clear, ticket: Ticket) -> None:
        operations = self._state.operations
        name, known = Fingerprint(body.fingerprint), self._state.roster.owners
        if name and name not in known and self._state.forgetting.is_needed:
            self._desk.wait(ticket)
            operations.clear_below(name, ticket)
            return
        owners = [operations.owner(name)] if name else list(known.values())
        self._desk.wait(ticket)
        operations.clear(owners, ticket, is_all=not name)

    def _delete(self, process: Process, body: Delete, ticket: Ticket) -> None:
        operations = self._state.operations
        check_keys(body.keys, 0)
        owner = operations.owner(body.fingerprint)
        self._desk.wait(ticket)
        operations.delete(owner, body.keys, ticket)

    def _delete_salt(self, process: Process, body: DeleteSalt, ticket: Ticket) -> None:
        self._state.operations.salts.begin(body.tenant, body.look, ticket)
        self._desk.wait(ticket)

    def _inspect(self, process: Process, body: Inspect, ticket: Ticket) -> Body | None:
        state = self._state

        def answer(owner: Owner, match: Match) -> Body | None:
            if not body.tiers:
                return InspectReply(chunks=match.count)
            self._desk.wait(ticket)

            def told(found: dict[str, int]) -> None:
                state.outbox.reply(ticket, InspectReply(chunks=match.count, tiers=found))

            self._holding.ask(owner, body.keys, ticket.deadline_ns, told)
            return None

        return self._of_held(body, ticket, answer)

    def _pin(self, process: Process, body: Pin, ticket: Ticket) -> Body | None:
        state = self._state

        def pinned(owner: Owner, match: Match) -> Body:
            return state.operations.pin(owner, body.keys, match, body.ttl_s, state.clock.now_ns)

        return self._of_held(body, ticket, pinned)

    def _of_held(
        self, body: Inspect | Pin, ticket: Ticket, answer: Callable[[Owner, Match], Body | None]
    ) -> Body | None:
        """Answers from what is held of a prefix, at once or after a walk in slices.

        An answer of None is given later.
        """
        state = self._state
        check_keys(body.keys, 0)
        owner = state.operations.owner(body.fingerprint)
        match = state.lookups.held(owner, body.keys)
        if match is not None:
            return answer(owner, match)

        def found(match: Match) -> None:
            reply = answer(owner, match)
            if reply is not None:
                state.outbox.reply(ticket, reply)

        self._desk.sliced(ticket, LANE, state.lookups.find_held(owner, body.keys, found))
        return None

    def _unpin(self, process: Process, body: Unpin, ticket: Ticket) -> Body:
        operations = self._state.operations
        check_keys(body.keys, 0)
        return operations.unpin(operations.owner(body.fingerprint), body.keys)

    def _warm(self, process: Process, body: WarmRequest, ticket: Ticket) -> Body:
        check_keys(body.keys, 0)
        job = self._state.warming.begin(
            process.process, body.fingerprint, body.max_bytes, body.keys
        )
        return WarmReply(warm=job.number)

    def _warm_status(self, process: Process, body: WarmStatus, ticket: Ticket) -> Body:
        return _told(self._state.warming.get(body.warm))

    def _warm_cancel(self, process: Process, body: WarmCancel, ticket: Ticket) -> Body:
        job = self._state.warming.get(body.warm)
        self._state.warming.cancel(job, "cancelled")
        return _told(job)


def _of_operator(handle: Handler) -> Handler:
    """Notes what kind of client asks, which costs engines' own requests nothing."""

    def handled(process: Process, body: Request, ticket: Ticket) -> Body | None:
        process.is_operator = True
        return handle(process, body, ticket)

    return handled


def _told(job: Warm) -> WarmStatusReply:
    return WarmStatusReply(
        listed=job.listed,
        held=job.held,
        loaded=job.num_chunks,
        loaded_bytes=job.num_bytes,
        missed=job.missed,
        final=job.is_over,
        reason=job.why[:MAX_TEXT_CHARS],
    )

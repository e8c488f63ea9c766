"""Requests of an engine about itself: coming, mapping, beating, leaving.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

import struct

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ExtentId
from protocol.messages import (
    Done,
    Heartbeat,
    HeartbeatReply,
    Mapped,
    RegisterKvCache,
    Unregister,
)
from server.core.desk import Desk, Table
from server.core.outbox import Ticket
from server.core.peers import Process


class EngineHandlers:
    """REGISTER_KV_CACHE, MAPPED, UNREGISTER, HEARTBEAT.

    Args:
        desk: references and answers.

    Attributes:
        table: handler of each request.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._state = desk.state
        self.table: Table = {
            RegisterKvCache: self._register,
            Mapped: self._mapped,
            Unregister: self._unregister,
            Heartbeat: self._heartbeat,
        }

    def _register(self, process: Process, body: RegisterKvCache, ticket: Ticket) -> None:
        self._state.registry.register(process, body, ticket)

    def _mapped(self, process: Process, body: Mapped, ticket: Ticket) -> Done:
        session = self._desk.of_process(process, body.session)
        readers = self._state.readers
        for extent in _u32(body.mapped):
            readers.mapped(session, ExtentId(extent))
        for extent in _u32(body.unmapped):
            readers.unmapped(session, ExtentId(extent))
        self._state.prefetches.mapped(session.instance)
        return Done()

    def _unregister(self, process: Process, body: Unregister, ticket: Ticket) -> None:
        session = self._desk.of_instance(process, body.session)
        owner = self._state.peers.processes.get(session.process)
        if session.process != process.process and (owner is None or not owner.quiet):
            # A process whose side connection broke comes back as another one: only it, or a rank
            # of its own engine, may end what it registered before.
            raise RequestError(
                ErrorCode.UNKNOWN_SESSION, f"session {body.session} is another process's"
            )
        self._desk.wait(ticket)
        self._state.departures.close(session, ticket, keep_offer=False)

    def _heartbeat(self, process: Process, body: Heartbeat, ticket: Ticket) -> HeartbeatReply:
        session = self._desk.of_instance(process, body.session)
        if len(body.requests) % 8:
            raise RequestError(
                ErrorCode.COUNT_MISMATCH,
                f"{len(body.requests)} bytes are no whole number of 8-byte request keys",
            )
        live = frozenset(struct.unpack(f"<{len(body.requests) // 8}Q", body.requests))
        for request in [key for key in session.instance.requests if key not in live]:
            self._state.leases.end_request(session.instance, request)
        self._state.prefetches.keep(session.instance, live)
        return HeartbeatReply(epoch=self._state.epoch, missing_ranks=session.instance.missing_ranks)


def _u32(blob: bytes) -> tuple[int, ...]:
    if len(blob) % 4:
        raise RequestError(
            ErrorCode.COUNT_MISMATCH, f"{len(blob)} bytes are no whole number of extent ids"
        )
    return struct.unpack(f"<{len(blob) // 4}I", blob)

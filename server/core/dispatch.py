"""The core's face towards the shell: events in, effects out.

Must not know: sockets, files, clocks, threads. Runs in: the loop thread, and in tests.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from protocol import frames, limits
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, Epoch, ExtentId, InstanceId, PoolId, Token
from protocol.messages import (
    VERSION_MAJOR,
    Body,
    Done,
    Hello,
    HelloReply,
    Ping,
    Request,
    Stats,
    StatsReply,
)
from server.core.config import CoreConfig
from server.core.effects import CopierId, Effect, JobId, PeerId, PoolHandle, ProcessId, SendReply
from server.core.outbox import Outbox, Ticket
from server.core.peers import Peer, Peers

__all__ = ["Core", "CoreConfig"]

CAPABILITIES = ("clear", "delete", "inspect", "pin", "stats")
_MAX_FAULTS = 16


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
        self._epoch = epoch
        self._arena = arena
        self._random_bytes = random_bytes
        self._outbox = Outbox()
        self._peers = Peers(config, epoch, arena, self._outbox)
        self._draining = False
        self._faults: list[str] = []

    # --- events from the shell -------------------------------------------------------------

    def process_joined(
        self, process: ProcessId, token: Token, instance: InstanceId, now_ns: int
    ) -> None:
        """A side connection said SideHello and got this token."""
        self._peers.join(process, token, instance)

    def pool_offered(self, process: ProcessId, pool: PoolId, size_bytes: int) -> None:
        """A process passed a descriptor; the shell has checked its seals and size."""
        self._peers.offer(process, pool, size_bytes)

    def process_quiet(self, process: ProcessId, now_ns: int) -> None:
        """A side connection ended: no new work for it; frees nothing."""
        entry = self._peers.processes.get(process)
        if entry is not None:
            entry.quiet = True

    def process_exited(self, process: ProcessId, now_ns: int) -> None:
        """A process is gone for certain: everything of it is freed."""
        self._peers.leave(process)

    def request(self, peer: PeerId, frame: bytes, now_ns: int) -> None:
        """One frame of a ZMQ peer; exactly one reply will follow, here or later."""
        op = seq = 0
        try:
            envelope = frames.unpack_request(frame)
            op, seq = envelope.op, envelope.seq
            known = self._peers.get(peer)
            session = known.session if known is not None else self._peers.stranger()
            session.admit(envelope, now_ns)
        except RequestError as error:
            self._outbox.counters["requests_refused"] += 1
            self._outbox.add(SendReply(peer, frames.pack_error(op, seq, error)))
            return
        ticket = self._outbox.open(Ticket(peer, op, seq, envelope.deadline_ns, session))
        self._outbox.counters["requests"] += 1
        try:
            body = frames.request_body(envelope)
            reply = self._handle(known, body, ticket, now_ns)
            if reply is not None:
                self._outbox.reply(ticket, reply)
        except RequestError as error:
            self._outbox.fail(ticket, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the loop
            self._fault(ticket, error)

    def peer_dropped(self, peer: PeerId) -> None:
        """Replies could not be delivered; the connection is forgotten."""
        self._peers.drop(peer)

    def extent_created(self, extent: ExtentId, error: str | None, now_ns: int) -> None:
        """CreateExtent ended."""

    def pool_opened(self, handle: PoolHandle, error: str | None, now_ns: int) -> None:
        """OpenPool ended."""

    def pool_closed(self, handle: PoolHandle, now_ns: int) -> None:
        """ClosePool ended."""

    def copy_done(self, job: JobId, error: str | None, now_ns: int) -> None:
        """StartCopy ended."""

    def copier_lost(self, copier: CopierId, now_ns: int) -> None:
        """A copier is gone: its jobs failed and its mappings do not exist any more."""

    def copier_ready(self, copier: CopierId, now_ns: int) -> None:
        """A copier has (re)started: mappings are asked again."""

    def tick(self, now_ns: int) -> None:
        """Deadlines and expiry; call it when ``next_timer_ns`` has come."""

    def work(self, now_ns: int) -> bool:
        """One slice of pending long work.

        Returns:
            Whether more is pending.
        """
        return False

    def next_timer_ns(self) -> int | None:
        """When ``tick`` has something to do, or None."""
        return None

    def take_effects(self) -> list[Effect]:
        """What to do now, in order."""
        return self._outbox.take()

    def take_faults(self) -> list[str]:
        """Tracebacks of faults of our own since the last call, at most 16, for the log."""
        taken, self._faults = self._faults, []
        return taken

    def begin_drain(self, now_ns: int) -> None:
        """Refuses new STORE, LOOKUP and REGISTER_KV_CACHE from now on."""
        self._draining = True

    def drained(self) -> bool:
        """Whether no reply is owed and no copy is in flight."""
        return self._outbox.num_owed == 0

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name."""
        values = dict(self._outbox.counters)
        values["processes"] = len(self._peers.processes)
        values["connections"] = self._peers.num_peers
        return values

    def check_integrity(self) -> None:
        """Recomputes everything from scratch.

        Raises:
            IntegrityError: names what is inconsistent.
        """

    # --- requests -----------------------------------------------------------------------------

    def _handle(self, peer: Peer | None, body: Request, ticket: Ticket, now_ns: int) -> Body | None:
        if isinstance(body, Hello):
            return self._hello(body, ticket, now_ns)
        assert peer is not None  # admit() lets only HELLO through for a stranger
        if isinstance(body, Ping):
            return Done()
        if isinstance(body, Stats):
            return StatsReply(values=self.stats())
        raise RequestError(ErrorCode.UNSUPPORTED, f"{body.op.name} is not served")

    def _hello(self, hello: Hello, ticket: Ticket, now_ns: int) -> HelloReply:
        minor = self._peers.greet(ticket.peer, hello, ticket.session)
        return HelloReply(
            epoch=self._epoch,
            arena=self._arena,
            now_ns=now_ns,
            major=VERSION_MAJOR,
            minor=minor,
            capabilities=CAPABILITIES,
            max_blocks=limits.MAX_BLOCKS_PER_MESSAGE,
            max_frame_bytes=limits.MAX_FRAME_BYTES,
            heartbeat_s=self._config.heartbeat_s,
        )

    def _fault(self, ticket: Ticket, error: Exception) -> None:
        self._outbox.counters["internal_errors"] += 1
        if len(self._faults) < _MAX_FAULTS:
            self._faults.append("".join(traceback.format_exception(error)))
        self._outbox.fail(
            ticket, RequestError(ErrorCode.INTERNAL, "the server failed; its log says why")
        )

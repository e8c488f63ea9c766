"""Both ends of one ZMQ connection, without the socket.

Purpose: the client half numbers requests, stamps epoch, arena and deadline and matches replies;
the server half refuses, before any effect, whatever was meant for another incarnation or comes
too late. Must not know: sockets, threads, clocks (time is an argument). Runs in: the thread that
owns the socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol import frames, limits
from protocol.errors import ErrorCode, ReplyMalformedError, RequestError
from protocol.ids import ID_BYTES, ArenaId, Epoch, InstanceId, Token
from protocol.messages import (
    VERSION_MAJOR,
    VERSION_MINOR,
    Hello,
    HelloReply,
    Op,
    Request,
)


@dataclass
class ClientSession:
    """The client half. One per socket; a fresh socket gets a fresh one.

    Attributes:
        instance: the engine this client belongs to.
        client: name and version for the server's log.
        welcome: the reply to HELLO once it came, else None.
    """

    instance: InstanceId
    client: str = ""
    welcome: HelloReply | None = None
    _clock_offset_ns: int = 0
    _next_seq: int = 1
    _awaited: dict[int, int] = field(default_factory=dict)

    @property
    def num_awaited(self) -> int:
        """Requests without a reply yet."""
        return len(self._awaited)

    def hello(self, token: Token) -> tuple[int, bytes]:
        """The first frame of a connection.

        Args:
            token: from the side socket.

        Returns:
            Its seq, and the frame.
        """
        body = Hello(
            token=token,
            instance=self.instance,
            major=VERSION_MAJOR,
            minor=VERSION_MINOR,
            client=self.client,
        )
        return self._number(body, b"", b"", 0)

    def request(self, body: Request, now_ns: int, timeout_ns: int) -> tuple[int, bytes]:
        """Any further frame.

        Args:
            body: what to ask.
            now_ns: this process's monotonic clock.
            timeout_ns: how long an answer is of use.

        Returns:
            Its seq, and the frame.

        Raises:
            RequestError: UNAUTHENTICATED before HELLO was answered.
        """
        if self.welcome is None:
            raise RequestError(ErrorCode.UNAUTHENTICATED, "HELLO was not answered yet")
        deadline_ns = now_ns + timeout_ns + self._clock_offset_ns
        deadline_ns = min(max(1, deadline_ns), limits.MAX_U63)
        return self._number(body, self.welcome.epoch, self.welcome.arena, deadline_ns)

    def _number(
        self, body: Request, epoch: bytes, arena: bytes, deadline_ns: int
    ) -> tuple[int, bytes]:
        seq = self._next_seq
        self._next_seq = seq % limits.MAX_U32 + 1
        self._awaited[seq] = int(body.op)
        return seq, frames.pack_request(body, seq, epoch, arena, deadline_ns)

    def receive(self, frame: bytes, now_ns: int) -> frames.Reply | None:
        """Matches a frame with the request it answers.

        Args:
            frame: as received.
            now_ns: this process's monotonic clock.

        Returns:
            The reply, or None when nobody waits for it any more.

        Raises:
            ReplyMalformedError: the frame is no reply, or answers another operation.
        """
        reply = frames.unpack_reply(frame)
        op = self._awaited.get(reply.seq)
        if op is None:
            return None
        del self._awaited[reply.seq]
        if op != reply.op:
            raise ReplyMalformedError(
                ErrorCode.MALFORMED, f"operation {op} was answered as operation {reply.op}"
            )
        if isinstance(reply.body, HelloReply):
            self.welcome = reply.body
            self._clock_offset_ns = reply.body.now_ns - now_ns
        return reply

    def forget(self, seq: int) -> None:
        """Stops waiting for one reply; it is dropped if it still comes."""
        self._awaited.pop(seq, None)


@dataclass
class ServerSession:
    """The server half of one ZMQ peer.

    Attributes:
        epoch: of this incarnation.
        arena: of its arena.
        instance: set once HELLO was accepted.
    """

    epoch: Epoch
    arena: ArenaId
    instance: InstanceId | None = None
    _open: set[int] = field(default_factory=set)

    @property
    def num_open(self) -> int:
        """Requests without an answer yet."""
        return len(self._open)

    def admit(self, envelope: frames.RequestEnvelope, now_ns: int) -> None:
        """Checks an envelope and opens its seq; from then on exactly one reply is owed.

        Args:
            envelope: as unpacked.
            now_ns: the server's monotonic clock.

        Raises:
            RequestError: UNAUTHENTICATED, STALE_EPOCH, WRONG_ARENA, DEADLINE_EXCEEDED,
                DUPLICATE or BUSY. Nothing was opened then; the refusal itself is the reply.
        """
        if envelope.op != Op.HELLO:
            self._check_incarnation(envelope)
            if envelope.deadline_ns and now_ns >= envelope.deadline_ns:
                raise RequestError(
                    ErrorCode.DEADLINE_EXCEEDED,
                    f"the deadline passed {(now_ns - envelope.deadline_ns) / 1e6:.1f} ms ago",
                )
        if envelope.seq in self._open:
            raise RequestError(ErrorCode.DUPLICATE, f"seq {envelope.seq} is still being answered")
        if len(self._open) >= limits.MAX_OUTSTANDING_REQUESTS:
            raise RequestError(
                ErrorCode.BUSY,
                f"at most {limits.MAX_OUTSTANDING_REQUESTS} requests of one connection may await "
                "their reply",
            )
        self._open.add(envelope.seq)

    def _check_incarnation(self, envelope: frames.RequestEnvelope) -> None:
        if self.instance is None:
            raise RequestError(ErrorCode.UNAUTHENTICATED, "the first request must be HELLO")
        if envelope.epoch != self.epoch:
            raise RequestError(
                ErrorCode.STALE_EPOCH,
                "the request was meant for another incarnation of the server: say HELLO again",
            )
        if envelope.arena != self.arena:
            raise RequestError(
                ErrorCode.WRONG_ARENA, "the request was meant for another arena: say HELLO again"
            )

    def accept(self, hello: Hello) -> int:
        """Accepts a HELLO whose token the caller has checked.

        Args:
            hello: the request.

        Returns:
            The minor version in use.

        Raises:
            RequestError: VERSION_MISMATCH naming ours, DUPLICATE for a second HELLO of another
                instance, INVALID_ARGUMENT for a token of another length.
        """
        if hello.major != VERSION_MAJOR:
            raise RequestError(
                ErrorCode.VERSION_MISMATCH,
                f"protocol {hello.major}.{hello.minor} is not spoken here; "
                f"{VERSION_MAJOR}.0 to {VERSION_MAJOR}.{VERSION_MINOR} are",
                major=VERSION_MAJOR,
                minor=VERSION_MINOR,
            )
        if len(hello.token) != ID_BYTES:
            raise RequestError(ErrorCode.INVALID_ARGUMENT, "a token has 16 bytes")
        if self.instance is not None and self.instance != hello.instance:
            raise RequestError(ErrorCode.DUPLICATE, "this connection belongs to another instance")
        self.instance = InstanceId(hello.instance)
        return min(hello.minor, VERSION_MINOR)

    def close(self, seq: int) -> None:
        """Notes that a seq was answered."""
        self._open.discard(seq)

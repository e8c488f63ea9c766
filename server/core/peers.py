"""Who is there: processes behind side connections, and their ZMQ connections.

Purpose: a token ties a ZMQ connection to a process whose exit is watched. State exists only for
connections whose HELLO was accepted; a stranger costs nothing. Must not know: sessions' content,
sockets. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from protocol import limits
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, Epoch, InstanceId, PoolId, SessionId, Token
from protocol.messages import Hello
from protocol.session import ServerSession
from server.core.config import CoreConfig
from server.core.effects import DropPoolOffer, DropProcess, ForgetProcess, PeerId, ProcessId
from server.core.outbox import Outbox


@dataclass
class Process:
    """One side connection.

    Attributes:
        process: the shell's number.
        token: what its ZMQ connections present.
        instance: the engine it belongs to.
        quiet: its side connection ended; nothing of it was freed.
        pools: descriptors it passed and that no session uses yet, with their length in bytes.
        peers: its ZMQ connections, least recently used first.
        sessions: its registrations.
        copiers_due_ns: when all copiers of devices that it had started are paid for by the time
            that went by.
        pid: of the process, for people; 0 for unknown.
        client: name and version, as its last HELLO said.
        joined_ns: when it came.
        heard_ns: when its last request came.
        is_operator: whether it asked what operators ask.
    """

    process: ProcessId
    token: Token
    instance: InstanceId
    quiet: bool = False
    pools: dict[PoolId, int] = field(default_factory=dict)
    peers: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    sessions: set[SessionId] = field(default_factory=set)
    copiers_due_ns: int = 0
    pid: int = 0
    client: str = ""
    joined_ns: int = 0
    heard_ns: int = 0
    is_operator: bool = False


@dataclass
class Peer:
    """One ZMQ connection that said HELLO.

    Attributes:
        peer: its routing id.
        process: whose it is.
        session: the server half of the connection.
    """

    peer: PeerId
    process: Process
    session: ServerSession


@dataclass(frozen=True)
class Dropped:
    """Whose a connection was.

    Attributes:
        name: for people, with words of the client's own.
        instance: the engine; None where the connection was not known.
    """

    name: str
    instance: InstanceId | None


class Peers:
    """All processes and connections.

    Attributes:
        processes: by the shell's number.
    """

    def __init__(self, config: CoreConfig, epoch: Epoch, arena: ArenaId, outbox: Outbox) -> None:
        self._config = config
        self._epoch = epoch
        self._arena = arena
        self._outbox = outbox
        self.processes: dict[ProcessId, Process] = {}
        self._by_token: dict[Token, Process] = {}
        self._peers: dict[PeerId, Peer] = {}

    @property
    def num_peers(self) -> int:
        """Connections with state."""
        return len(self._peers)

    def join(
        self, process: ProcessId, token: Token, instance: InstanceId, now_ns: int = 0, pid: int = 0
    ) -> None:
        """Notes a new side connection, or has it closed when there are too many."""
        if len(self.processes) >= self._config.max_processes:
            reason = f"at most {self._config.max_processes} processes may connect"
            self._outbox.add(DropProcess(process, ErrorCode.LIMIT_EXCEEDED, reason))
            return
        entry = Process(process, token, instance, pid=pid, joined_ns=now_ns, heard_ns=now_ns)
        self.processes[process] = entry
        self._by_token[token] = entry

    def offer(self, process: ProcessId, pool: PoolId, size_bytes: int) -> None:
        """Notes a descriptor that a process passed; too many are closed again."""
        entry = self.processes.get(process)
        limit = self._config.max_pools_per_process
        if entry is None or pool in entry.pools or len(entry.pools) >= limit:
            if entry is None or pool not in entry.pools:
                self._outbox.add(DropPoolOffer(process, pool))
            return
        entry.pools[pool] = size_bytes

    def quiet(self, process: ProcessId) -> None:
        """A side connection ended; what is its stays until the exit, if anything is."""
        entry = self.processes.get(process)
        if entry is None:
            self._outbox.add(ForgetProcess(process))
            return
        entry.quiet = True
        self.forget_if_over(entry)

    def forget_if_over(self, entry: Process) -> None:
        """Forgets a process that can begin nothing and has nothing here.

        Otherwise one that connects again and again would use up the places of all.
        """
        if entry.quiet and not entry.sessions and self.leave(entry.process, gone=False):
            self._outbox.add(ForgetProcess(entry.process))

    def leave(self, process: ProcessId, gone: bool) -> Process | None:
        """Forgets a process and its connections.

        Args:
            process: which.
            gone: it exited, so nobody waits for replies.

        Returns:
            What was known of it, or None.
        """
        entry = self.processes.pop(process, None)
        if entry is None:
            return None
        del self._by_token[entry.token]
        for pool in entry.pools:
            self._outbox.add(DropPoolOffer(process, pool))
        entry.pools.clear()
        for peer in list(entry.peers):
            (self.drop if gone else self._forget)(peer)
        return entry

    def drop(self, peer: PeerId, is_closed: bool = False) -> Dropped:
        """Forgets a connection that is gone; answers that are still owed to it are not sent.

        Args:
            peer: whose.
            is_closed: its client had closed it before an answer came.

        Returns:
            Whose it was, as far as it is known.
        """
        if is_closed:
            self._outbox.counters["replies_unheard"] += 1
        entry = self._forget(peer)
        if entry is None:
            return Dropped("a client that is not known any more", None)
        entry.session.instance = None
        process = entry.process
        client = f" ({process.client})" if process.client else ""
        pid = f"process {process.pid}" if process.pid else "a process"
        return Dropped(f"{pid}{client}", process.instance)

    def _forget(self, peer: PeerId) -> Peer | None:
        """Forgets a connection; what is owed to it is still sent."""
        entry = self._peers.pop(peer, None)
        if entry is not None:
            entry.process.peers.pop(peer, None)
        return entry

    def get(self, peer: PeerId) -> Peer | None:
        """The connection, if it said HELLO; it counts as used just now."""
        entry = self._peers.get(peer)
        if entry is not None:
            entry.process.peers.move_to_end(peer)
        return entry

    def stranger(self) -> ServerSession:
        """The server half for a connection without state; refuses all but HELLO."""
        return ServerSession(self._epoch, self._arena)

    def greet(self, peer: PeerId, hello: Hello, session: ServerSession) -> int:
        """Checks a HELLO and keeps the connection.

        A process that opens one connection too many loses the one it used least recently: it may
        have opened fresh ones after time-outs, and ZMQ does not tell of closed ones. Were it in
        use after all, it is answered UNAUTHENTICATED next, which asks for a HELLO.

        Args:
            peer: routing id.
            hello: the request.
            session: server half, new or known.

        Returns:
            The minor version in use.

        Raises:
            RequestError: UNAUTHENTICATED, with the side socket's path, or from
                ``ServerSession.accept``.
        """
        entry = self._by_token.get(Token(hello.token))
        if entry is None or entry.quiet or entry.instance != hello.instance:
            raise RequestError(
                ErrorCode.UNAUTHENTICATED,
                f"HELLO needs a token from the side socket {self._config.side_path}",
                side=self._config.side_path,
            )
        known = self._peers.get(peer)
        if known is not None and known.process is not entry:
            raise RequestError(ErrorCode.DUPLICATE, "this connection belongs to another process")
        minor = session.accept(hello)
        entry.client = hello.client
        if known is None:
            while len(entry.peers) >= limits.MAX_CONNECTIONS_PER_TOKEN:
                self._forget(next(iter(entry.peers)))
            self._peers[peer] = Peer(peer, entry, session)
        entry.peers[peer] = None
        return minor

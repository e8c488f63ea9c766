"""Clients of a fuzzed core: what each sent, what it was answered, what it may read.

Every frame that goes in is decoded here as well, so that the oracles follow what a message says
after it was changed, not what it was meant to say. Knows no grammar. Runs in the fuzzer's process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol import frames
from protocol import messages as m
from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import InstanceId, PoolId, Token
from server.core import effects as fx
from server.core.outbox import Ticket
from server.core.peers import Peer
from tests.fuzz.finding import Finding, require
from tests.fuzz.loading import LeaseFact, Loads
from tests.fuzz.told import check_told
from tests.fuzz.truth import ARENA, EPOCH, Seat, Truth

OWN_SESSION = (m.Mapped, m.Release, m.Store, m.Commit, m.Cancel)
BEGINS = (m.RegisterKvCache, m.Lookup, m.Retrieve, m.Store)
DRAINED = (m.RegisterKvCache, m.Lookup, m.Store)


@dataclass
class Sent:
    """One frame on its way.

    Attributes:
        peer: over which connection.
        process: whose.
        op: as the server must have read it.
        seq: likewise.
        body: likewise; None when it is no request.
        serial: when, among all frames.
        wrong: why it must not be served, or empty.
    """

    peer: bytes
    process: Process
    op: int
    seq: int
    body: m.Request | None
    serial: int
    wrong: str = ""


@dataclass
class Process:
    """One client process.

    Attributes:
        number: the shell's number.
        token: of its side connection.
        instance: of its engine.
        rank: of its engine.
        space: which namespace it registers.
        peers: its connections.
        seats: sessions it registered.
        pools: descriptors it passed, with their length.
        stores: (session, store, copied chunks) of STOREs it sent; None before the answer.
        to_map: extents it was given and did not report yet.
        to_unmap: extents that were taken from it.
        is_alive: it has not exited.
        is_quiet: its side connection ended.
    """

    number: int
    token: bytes
    instance: bytes
    rank: int
    space: int
    peers: list[bytes] = field(default_factory=list)
    seats: list[int] = field(default_factory=list)
    pools: list[tuple[bytes, int]] = field(default_factory=list)
    stores: list[tuple[int, int, int | None]] = field(default_factory=list)
    to_map: list[int] = field(default_factory=list)
    to_unmap: list[int] = field(default_factory=list)
    next_store: int = 1
    is_alive: bool = True
    is_quiet: bool = False


class Clients:
    """All of them, around one truth.

    Attributes:
        frames: frames sent.
        served: of those, how many reached a handler.
        answers: replies by operation and code.
    """

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.processes: list[Process] = []
        self.owed: dict[tuple[bytes, int], list[Sent]] = {}
        self.greeted: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.released: dict[tuple[int, bytes], int] = {}
        self.closed: set[int] = set()
        self.frames = self.served = self.serial = 0
        self.answers: dict[tuple[int, int], int] = {}
        self.secrets: list[tuple[bytes, bytes]] = []
        self._next_peer = 1
        self._loads = Loads(self)
        truth.replied = self._replied
        truth.given = self._given
        self.watch()

    @property
    def leases(self) -> dict[bytes, LeaseFact]:
        """Every lease that was ever told of, by its id."""
        return self._loads.leases

    def watch(self) -> None:
        """Counts what reaches a handler of the present core."""
        inner = self.truth.core._handle

        def handle(
            peer: Peer | None, body: m.Request, ticket: Ticket, now_ns: int
        ) -> m.Body | None:
            self.served += 1
            return inner(peer, body, ticket, now_ns)

        self.truth.core._handle = handle  # type: ignore[method-assign]

    # --- processes ------------------------------------------------------------------------

    def join(self, instance: bytes, rank: int, space: int) -> Process:
        """A new side connection."""
        truth = self.truth
        number = len(self.processes) + 1
        token = truth.random.randbytes(16)
        process = Process(number, token, instance, rank, space)
        self.processes.append(process)
        truth.instances[number] = instance
        self.secrets.append((token, instance))
        truth.core.process_joined(
            fx.ProcessId(number), Token(token), InstanceId(instance), truth.now_ns
        )
        return process

    def connect(self, process: Process) -> bytes:
        """Another connection of a process; it has yet to say HELLO."""
        peer = b"\0" + self._next_peer.to_bytes(4, "big")
        self._next_peer += 1
        process.peers.append(peer)
        return peer

    def offer(self, process: Process, size_bytes: int) -> bytes:
        """A descriptor passed over the side connection."""
        pool = self.truth.random.randbytes(16)
        process.pools.append((pool, size_bytes))
        self.truth.core.pool_offered(fx.ProcessId(process.number), PoolId(pool), size_bytes)
        return pool

    def exit(self, process: Process) -> None:
        """A process is gone: it reads nothing and waits for nothing."""
        process.is_alive = False
        for session in process.seats:
            self._stop_reading(session)
        self.closed.update(process.seats)
        for peer in process.peers:
            self.drop(peer)
        self.truth.core.process_exited(fx.ProcessId(process.number), self.truth.now_ns)

    def drop(self, peer: bytes) -> None:
        """Nobody waits on a connection any more."""
        self.gone.add(peer)
        for key in [key for key in self.owed if key[0] == peer]:
            del self.owed[key]

    def _stop_reading(self, session: int) -> None:
        seat = self.truth.seats.get(session)
        if seat is None:
            return
        seat.is_open = False
        seat.reads.clear()
        for key in [key for key in self.truth.claims if key[0] == session]:
            del self.truth.claims[key]

    # --- sending --------------------------------------------------------------------------

    def send(self, process: Process, peer: bytes, frame: bytes) -> None:
        """Hands a frame to the core, and notes what it says."""
        op = seq = 0
        body: m.Request | None = None
        wrong = "no request of this protocol"
        try:
            envelope = frames.unpack_request(frame)
            op, seq = envelope.op, envelope.seq
            body = frames.request_body(envelope)
            wrong = self._wrong(process, peer, envelope, body)
        except RequestError:
            pass
        self.serial += 1
        self.truth.below.serial = self.serial
        self.frames += 1
        sent = Sent(peer, process, op, seq, body, self.serial, wrong)
        self.owed.setdefault((peer, seq), []).append(sent)
        if body is not None:
            self._said(sent)
        self.truth.core.request(fx.PeerId(peer), frame, self.truth.now_ns)
        self.truth.effects()

    def _owner(self, token: bytes) -> Process | None:
        return next((one for one in self.processes if one.token == token and one.is_alive), None)

    def _wrong(
        self, process: Process, peer: bytes, envelope: frames.RequestEnvelope, body: m.Request
    ) -> str:
        if isinstance(body, m.Hello):
            owner = self._owner(body.token)
            mine = owner is not None and body.instance == owner.instance
            return "" if mine else "a token of another engine"
        if peer not in self.greeted or peer in self.gone:
            return "before HELLO"
        if envelope.epoch != EPOCH or envelope.arena != ARENA:
            return "of another incarnation"
        if 0 < envelope.deadline_ns <= self.truth.now_ns:
            return "after its deadline"
        if process.is_quiet and isinstance(body, BEGINS):
            return "after its side connection ended"
        if self.truth.draining and isinstance(body, DRAINED):
            return "while the server drains"
        session = getattr(body, "session", None)
        if session is None:
            return ""
        seat = self.truth.seats.get(session)
        if seat is not None and seat.instance != process.instance:
            return "a session of another engine"
        if session in self.closed:
            return "a session that ended"
        if seat is not None and isinstance(body, OWN_SESSION) and seat.process != process.number:
            return "a session of another process"
        return ""

    def _said(self, sent: Sent) -> None:
        """What the client gives up by saying this, whether or not it is heard."""
        body, truth = sent.body, self.truth
        truth.tenants.add(getattr(body, "tenant", b""))
        seat = truth.seats.get(getattr(body, "session", 0))
        if seat is None or seat.instance != sent.process.instance:
            return
        if isinstance(body, m.Store):
            truth.expect(seat, body)
            if not sent.wrong:
                sent.process.stores.append((body.session, body.store, None))
        elif isinstance(body, m.Release):
            self._let_go(sent, body, seat)
        elif isinstance(body, m.Mapped) and seat.is_open and seat.process == sent.process.number:
            seat.reads |= set(_u32(body.mapped)) & seat.given
            seat.said |= set(_u32(body.mapped))
            seat.reads -= set(_u32(body.unmapped))
        elif isinstance(body, m.Unregister):
            self._stop_reading(body.session)

    def _let_go(self, sent: Sent, body: m.Release, seat: Seat) -> None:
        for session, other in self.truth.seats.items():
            mine = session == seat.session and seat.process == sent.process.number
            if other.instance == seat.instance and (mine or body.all_readers):
                self.truth.claims.pop((session, body.lease), None)
                self.released[session, body.lease] = sent.serial

    # --- answers --------------------------------------------------------------------------

    def _replied(self, effect: fx.SendReply) -> None:
        peer = bytes(effect.peer)
        try:
            reply = frames.unpack_reply(effect.frame)
        except KvkeepError as error:
            raise Finding(f"an answer without a type: {error}") from error
        if peer in self.gone:
            return
        waiting = self.owed.get((peer, reply.seq))
        if not waiting:
            raise Finding(f"an answer nobody waits for: operation {reply.op} seq {reply.seq}")
        refused_now = reply.error is not None and waiting[-1].serial == self.serial
        place = -1 if refused_now and waiting[-1].op == reply.op else self._first(waiting, reply.op)
        sent = waiting.pop(place)
        if not waiting:
            del self.owed[peer, reply.seq]
        require(reply.op == sent.op, f"answered as another operation: {reply.op} for {sent.op}")
        code = 0 if reply.error is None else int(reply.error.code)
        self.answers[reply.op, code] = self.answers.get((reply.op, code), 0) + 1
        require(code != ErrorCode.INTERNAL, "answered INTERNAL: a fault of the server's")
        self._check_secrets(effect.frame, sent.process)
        if reply.body is not None:
            require(not sent.wrong, f"served what must be refused: {sent.wrong}")
            self._served(sent, reply.body)

    @staticmethod
    def _first(waiting: list[Sent], op: int) -> int:
        return next((at for at, one in enumerate(waiting) if one.op == op), 0)

    def _check_secrets(self, frame: bytes, process: Process) -> None:
        for secret, instance in self.secrets:
            if instance != process.instance:
                require(secret not in frame, "an answer tells another engine's secret: id")

    def _served(self, sent: Sent, body: m.Body) -> None:
        asked = sent.body
        if isinstance(asked, m.Hello):
            self.greeted.add(sent.peer)
            owner = self._owner(asked.token)
            if owner is not None and owner is not sent.process:
                # Whoever shows a token is the process it was given to.
                sent.process.peers.remove(sent.peer)
                owner.peers.append(sent.peer)
        elif isinstance(asked, m.RegisterKvCache) and isinstance(body, m.RegisterKvCacheReply):
            require(body.session not in self.truth.seats, "a session number: given twice")
            seat = Seat(
                body.session,
                sent.process.number,
                sent.process.instance,
                asked,
                body.fingerprint,
            )
            self.truth.seats[body.session] = seat
            sent.process.seats.append(body.session)
        elif isinstance(asked, m.Unregister):
            self.closed.add(asked.session)
        elif isinstance(asked, m.Mapped):
            self.truth.seats[asked.session].said -= set(_u32(asked.unmapped))
        elif isinstance(asked, m.Store) and isinstance(body, m.StoreReply):
            self._stored(sent.process, asked, body)
        elif isinstance(asked, m.Clear | m.Delete):
            keys = asked.keys if isinstance(asked, m.Delete) else b""
            if asked.fingerprint:
                self.truth.below.forgotten(asked.fingerprint, keys, sent.serial)
        else:
            self._loads.answered(sent, body)
            check_told(self.truth, body)

    def _stored(self, process: Process, asked: m.Store, body: m.StoreReply) -> None:
        require(body.held + body.copied <= len(asked.keys) // 16, "stored more: than was asked")
        process.stores = [one for one in process.stores if one[:2] != (asked.session, asked.store)]
        if body.copied:
            process.stores.append((asked.session, asked.store, body.copied))

    def _given(self, effect: fx.GiveExtent | fx.TakeExtent) -> None:
        process = self.processes[effect.process - 1]
        if isinstance(effect, fx.GiveExtent):
            process.to_map.append(effect.geometry.extent)
        else:
            process.to_unmap.append(effect.extent)

    def check_nothing_owed(self) -> None:
        """Every frame was answered, once all had their time."""
        late = [one for waiting in self.owed.values() for one in waiting]
        if late:
            raise Finding(f"never answered: operation {late[0].op} seq {late[0].seq}")


def _u32(blob: bytes) -> list[int]:
    return [int.from_bytes(blob[at : at + 4], "little") for at in range(0, len(blob) // 4 * 4, 4)]

"""Steps of a sequence: what clients ask, what the shell reports, and how a request is spoilt.

A step is a verb and five numbers, resolved against what is there when it is played, so that any
subset of a sequence is a sequence. Knows how to build messages, not what is right. Runs in the
fuzzer's process.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from protocol import frames
from protocol import messages as m
from protocol.errors import RequestError
from protocol.layout import CudaIpcMemory, MemfdMemory, Region, RingMemory, ShardPool, pack_pages
from protocol.namespace import fingerprint
from server.core import effects as fx
from tests.fuzz import samples, wire
from tests.fuzz.clients import Clients, Process
from tests.fuzz.mutate import Material, mutate
from tests.fuzz.truth import ARENA, EPOCH, SECOND, Seat
from tests.fuzz.wire import Template
from tests.server.core.spaces import CHAINS, LENGTH, SPACES, TENANTS, keys_of

PAGES = 48
T = TypeVar("T")
NAMES = [fingerprint(space) for space in SPACES]


class Step(NamedTuple):
    """One step.

    Attributes:
        verb: what to do.
        a: mostly, who does it.
        b: mostly, to what.
        c: mostly, how much.
        m: how it is spoilt: below 60 not at all.
        x: seed of the details.
    """

    verb: str
    a: int
    b: int
    c: int
    m: int
    x: int


def pick(things: list[T], number: int) -> T | None:
    """One of some things, or None."""
    return things[number % len(things)] if things else None


class Actor:
    """Builds requests and sends them, spoilt or not.

    Args:
        clients: who asks.
        stock: material for mutations.
    """

    def __init__(self, clients: Clients, stock: Material) -> None:
        self.clients = clients
        self.truth = clients.truth
        self.stock = stock
        self._seq = 0

    # --- choosing -------------------------------------------------------------------------

    def alive(self) -> list[Process]:
        """Processes that have not exited."""
        return [one for one in self.clients.processes if one.is_alive]

    def who(self, number: int) -> Process | None:
        """A process that may ask; mostly one with a session."""
        alive = self.alive()
        seated = [one for one in alive if any(self.truth.seats[s].is_open for s in one.seats)]
        return pick(seated if seated and number % 8 else alive, number // 8)

    def seat(self, process: Process, number: int) -> int:
        """One of its sessions that it did not end; a number out of the air without one."""
        mine = [one for one in process.seats if self.truth.seats[one].is_open]
        return pick(mine, number) or 1 + number % 5

    def seat_of(self, process: Process, number: int) -> Seat | None:
        """The same as what was registered."""
        return self.truth.seats.get(self.seat(process, number))

    # --- sending --------------------------------------------------------------------------

    def ask(self, process: Process, body: m.Request, step: Step) -> None:
        """Sends a request, changed as the step says."""
        draw = random.Random(step.x)
        peer = self._peer(process, draw)
        if 60 <= step.m < 84:
            body = self._spoil_body(process, body, step.m, draw)
        self._seq += 1
        scope: list[Any] = [self._seq, EPOCH, ARENA, self.truth.now_ns + 3600 * SECOND]
        if isinstance(body, m.Hello):
            scope[1:3] = [b"", b""]
        op = int(body.op)
        if 84 <= step.m < 91:
            op = self._spoil_scope(scope, op, peer, draw)
        try:
            frame = wire.encode((op, *scope, body))
        except (OverflowError, UnicodeEncodeError):
            return
        if 91 <= step.m < 98:
            frame = mutate(draw.random, Template("request", frame), self.stock)
        elif step.m >= 98:
            frame = self._stranger(draw)
        self.clients.send(process, peer, frame)

    def _peer(self, process: Process, draw: random.Random) -> bytes:
        known = [one for one in process.peers if one not in self.clients.gone]
        if not known or draw.random() < 0.02:
            peer = self.clients.connect(process)
            if draw.random() < 0.9:
                self.hello(process, peer)
            return peer
        return known[int(draw.random() * len(known))] if draw.random() < 0.3 else known[-1]

    def hello(self, process: Process, peer: bytes) -> None:
        """The first frame of a connection."""
        body = m.Hello(token=process.token, instance=process.instance, major=1, minor=0)
        self._seq += 1
        self.clients.send(process, peer, frames.pack_request(body, self._seq))

    def _spoil_body(
        self, process: Process, body: m.Request, how: int, draw: random.Random
    ) -> m.Request:
        names = type(body).__struct_fields__
        if not names:
            return body
        if how < 72:
            names = tuple(one for one in names if one in _IDS) or names
        name = draw.choice(names)
        value = getattr(body, name)
        if name in _IDS and draw.random() < 0.8:
            value = self._foreign(name, value, draw)
        elif isinstance(value, bool):
            value = not value
        elif isinstance(value, int):
            value = draw.choice((*_EDGES, value + 1, value - 1))
        elif isinstance(value, bytes):
            value = _tweak(value, draw)
        elif isinstance(value, str):
            value = draw.choice(("", "x" * 512, "x" * 513))
        else:
            return self._spoil_deep(body, name, value, draw)
        return msgspec.structs.replace(body, **{name: value})

    def _spoil_deep(self, body: m.Request, name: str, value: Any, draw: random.Random) -> m.Request:
        """Changes a registration inside: its namespace, its memory, its pools."""
        if isinstance(value, msgspec.Struct):
            inner = draw.choice(type(value).__struct_fields__)
            part = getattr(value, inner)
            if isinstance(part, int):
                part = draw.choice((*_EDGES, part + 1, part - 1, part * 2))
            elif isinstance(part, bytes):
                part = _tweak(part, draw)
            try:
                value = msgspec.structs.replace(value, **{inner: part})
            except ValueError:  # too many shards: only bytes on the wire can say that
                return body
        elif isinstance(value, tuple):
            choice = draw.randrange(4)
            if choice < 2 and value and isinstance(value[0], ShardPool):
                value = (self._spoil_pool(value[0], draw), *value[1:])
            else:
                value = (value[1:], value + value, value[::-1], ())[choice]
        elif value is None:
            value = MemfdMemory(pool=b"p" * 16, size_bytes=4096)
        return msgspec.structs.replace(body, **{name: value})

    @staticmethod
    def _spoil_pool(pool: ShardPool, draw: random.Random) -> ShardPool:
        region = pool.regions[0]
        choice, step = draw.randrange(4), draw.choice((-1, 1, 4096))
        if choice == 0:
            return msgspec.structs.replace(pool, num_pages=pool.num_pages + step)
        name = ("offset_bytes", "size_bytes", "stride_bytes")[choice - 1]
        region = msgspec.structs.replace(region, **{name: getattr(region, name) + step})
        return msgspec.structs.replace(pool, regions=(region, *pool.regions[1:]))

    def _foreign(self, name: str, value: Any, draw: random.Random) -> Any:
        """An id of the same kind: somebody else's, an old one, or none at all."""
        clients = self.clients
        choices: dict[str, list[Any]] = {
            "session": [*self.truth.seats, *clients.closed],
            "lease": list(clients.leases),
            "store": [one[1] for process in clients.processes for one in process.stores],
            "token": [one.token for one in clients.processes],
            "instance": [one.instance for one in clients.processes],
            "fingerprint": NAMES,
            "request": [0, 1, 2, 3],
        }
        found = choices.get(name)
        return draw.choice(found) if found else value

    def _spoil_scope(self, scope: list[Any], op: int, peer: bytes, draw: random.Random) -> int:
        """Changes the envelope: seq, epoch, arena, deadline, or which operation it is."""
        choice = draw.randrange(6)
        open_ = [seq for known, seq in self.clients.owed if known == peer]
        if choice == 0:
            scope[0] = draw.choice((*open_, 0, 1, (1 << 32) - 1))
        elif choice == 1:
            scope[1] = draw.choice((b"", b"e" * 16, b"E" * 15))
        elif choice == 2:
            scope[2] = draw.choice((b"", b"a" * 16))
        elif choice == 3:
            scope[3] = draw.choice((1, self.truth.now_ns, self.truth.now_ns - 1))
        elif choice == 4:
            scope[3] = draw.choice((0, self.truth.now_ns + 1, self.truth.now_ns + SECOND))
        else:
            return draw.choice((*m.REQUEST_TYPES, 0, 36, (1 << 32) - 1))
        return op

    def _stranger(self, draw: random.Random) -> bytes:
        """A message that fits nothing that was said, or no message at all."""
        if draw.random() < 0.1:
            return draw.randbytes(draw.choice((0, 1, 40)))
        valid = [one for one in samples.templates() if one.target == "request"]
        op, seq, _, _, _, body = wire.decode(draw.choice(valid).data)
        return wire.encode((op, seq, EPOCH, ARENA, 0, body))


_IDS = frozenset({"session", "lease", "store", "token", "instance", "fingerprint", "request"})
_EDGES = (0, 1, -1, 255, 256, 16384, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)


def _tweak(blob: bytes, draw: random.Random) -> bytes:
    """A blob of another length, order or content."""
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: blob[:-1],
        lambda: blob + b"\xff",
        lambda: b"",
        lambda: blob + blob[-16:],
        lambda: blob[16:],
        lambda: blob[::-1],
        lambda: blob[:4] + struct.pack("<i", draw.choice((-1, PAGES, 1 << 30))) + blob[8:],
        lambda: struct.pack("<i", draw.choice((-1, -5, PAGES, 1 << 30))) + blob[4:],
        lambda: bytes(len(blob)),
    )
    return draw.choice(changes)()


def register_body(process: Process, pool: bytes, shape: int) -> tuple[m.RegisterKvCache, int]:
    """A registration, and how long its memory must be.

    Args:
        process: whose.
        pool: id of its memory.
        shape: of its regions, and which kind of memory.
    """
    space = SPACES[process.space % len(SPACES)]
    pools, length = [], 0
    rank = process.rank % space.num_ranks
    for shard in space.shards_of_rank(rank):
        size = space.groups[space.group_of(shard)].page_bytes
        sizes = ((size,), (size // 2, size // 2), (size,))[shape % 3]
        gap = 512 if shape % 3 == 2 else 0
        regions = []
        for part in sizes:
            regions.append(Region(offset_bytes=length, size_bytes=part, stride_bytes=part + gap))
            length += (part + gap) * PAGES
        pools.append(ShardPool(shard=shard, num_pages=PAGES, regions=tuple(regions)))
    memory: Any = (MemfdMemory, RingMemory)[shape // 3 % 2](pool=pool, size_bytes=length)
    if shape % 11 == 10:
        memory = CudaIpcMemory(
            handle=bytes(64),
            device_uuid=bytes([shape // 11 % 3]) * 16,
            base_offset_bytes=0,
            size_bytes=length,
        )
    if shape % 13 == 12:
        memory, pools = None, []
    body = m.RegisterKvCache(
        namespace=space,
        rank=rank,
        memory=memory,
        pools=tuple(pools),
        numa_node=(None, 0, 1023)[shape // 7 % 3],
    )
    return body, length


def store_body(process: Process, seat: Seat, step: Step) -> m.Store:
    """A STORE of a run of a chain, from random pages."""
    draw = random.Random(step.x)
    space = seat.body.namespace
    keys = keys_of(CHAINS[step.b % len(CHAINS)], step.b // 8 % 2)
    start = 0 if step.c % 3 else step.c % LENGTH
    stop = min(LENGTH, start + 1 + step.c // 3 % LENGTH)
    stop = min(stop, start + PAGES // space.chunk_blocks)
    shards = space.shards_of_rank(seat.body.rank)
    pages = [draw.randrange(PAGES) for _ in range((stop - start) * space.chunk_blocks)]
    number, process.next_store = process.next_store, process.next_store + 1
    return m.Store(
        session=seat.session,
        store=number,
        request=1 + step.b % 3,
        shard=shards[step.b // 2 % len(shards)],
        start=start,
        parent=keys[start - 1] if start else b"",
        keys=b"".join(keys[start:stop]),
        pages=pack_pages(pages),
        tenant=TENANTS[step.x // 16 % len(TENANTS)],
    )


def body_of(frame: bytes) -> m.Request | None:
    """What a frame asks, or None."""
    try:
        return frames.request_body(frames.unpack_request(frame))
    except RequestError:
        return None


HOST = fx.HOST_COPIER

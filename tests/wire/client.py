"""A small client of the wire, built on ``protocol`` alone: side socket, ZMQ, pools, extents.

Single-threaded and without retries, so that a test sees exactly what the server did. Knows
nothing of ``server`` and ``adapter``. Runs in the pytest process or in a child of it.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from protocol import frames, limits, side
from protocol.extents import ExtentGeometry, unpack_header
from protocol.ids import ArenaId, InstanceId, Token
from protocol.layout import (
    MemfdMemory,
    Memory,
    Region,
    RingMemory,
    ShardPool,
    pack_pages,
    unpack_slots,
)
from protocol.messages import (
    Body,
    Commit,
    CommitReply,
    Done,
    HelloReply,
    Lookup,
    LookupReply,
    Mapped,
    RegisterKvCache,
    RegisterKvCacheReply,
    Release,
    Released,
    Request,
    Retrieve,
    RetrieveReply,
    Store,
    StoreReply,
)
from protocol.namespace import LayerGroup, Namespace
from protocol.session import ClientSession

WAIT_S = 15.0
B = TypeVar("B", bound=Body)
E = TypeVar("E", bound="Engine")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SideClient:
    """One side connection.

    Attributes:
        welcome: the server's answer to SideHello, once ``hello`` returned.
    """

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(path)
        self.welcome: side.Welcome | None = None

    def hello(self, instance: bytes, major: int = 1) -> side.FromServer:
        """Says SideHello and returns the answer."""
        self.send(side.pack(side.SideHello(major=major, minor=0, instance=instance)))
        answer, fds = self.receive()
        assert fds == []
        if isinstance(answer, side.Welcome):
            self.welcome = answer
        return answer

    def send(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        """Sends one packet with descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([packet], rights)

    def receive(self) -> tuple[side.FromServer, list[int]]:
        """The next packet and its descriptors; the caller closes them.

        Raises:
            ConnectionError: the server closed the connection.
        """
        space = socket.CMSG_SPACE(4 * 4)
        packet, ancillary, _, _ = self.socket.recvmsg(
            limits.MAX_SIDE_BYTES, space, socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            raise ConnectionError("closed by the server")
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        return side.unpack_from_server(packet), fds.tolist()

    def offer(self, pool: bytes, fd: int, size_bytes: int) -> side.FromServer:
        """Passes a pool and returns the answer."""
        self.send(side.pack(side.PoolOffer(pool=pool, size_bytes=size_bytes)), [fd])
        return self.receive()[0]

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()


class WireClient:
    """One ZMQ connection."""

    def __init__(self, url: str, instance: bytes) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(url)
        self.session = ClientSession(InstanceId(instance), "tests")
        self._early: dict[int, frames.Reply] = {}
        self.on_wait: Callable[[], None] | None = None

    def hello(self, token: bytes) -> HelloReply:
        """Says HELLO; raises what the server answers instead."""
        seq, frame = self.session.hello(Token(token))
        self.socket.send(frame)
        return expect(self.reply(seq), HelloReply)

    def submit(self, body: Request, timeout_s: float = WAIT_S) -> int:
        """Sends a request without waiting; returns its seq."""
        seq, frame = self.session.request(body, time.monotonic_ns(), int(timeout_s * 1e9))
        self.socket.send(frame)
        return seq

    def reply(self, seq: int, wait_s: float = WAIT_S) -> frames.Reply:
        """The reply to a seq; replies to others in between are kept for whoever asks."""
        deadline_s = time.monotonic() + wait_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            if seq in self._early:
                return self._early.pop(seq)
            step_s = left_s if self.on_wait is None else min(left_s, 0.02)
            if self.socket.poll(int(step_s * 1000) + 1):
                reply = self.session.receive(self.socket.recv(), time.monotonic_ns())
                if reply is not None and reply.seq == seq:
                    return reply
                if reply is not None:
                    self._early[reply.seq] = reply
            elif self.on_wait is not None:
                self.on_wait()
        raise TimeoutError(f"no reply to seq {seq} within {wait_s} s")

    def call(self, body: Request, kind: type[B], timeout_s: float = WAIT_S) -> B:
        """Asks and waits; raises ReplyError for an error."""
        return expect(self.reply(self.submit(body, timeout_s)), kind)

    def close(self) -> None:
        """Closes socket and context."""
        self.socket.close()
        self._context.term()


def expect(reply: frames.Reply, kind: type[B]) -> B:
    """The body of a reply, or its error raised."""
    if reply.error is not None:
        raise reply.error
    assert isinstance(reply.body, kind), reply.body
    return reply.body


def make_pool(num_bytes: int, seals: int = SEALS) -> tuple[int, NDArray[np.uint8]]:
    """A memfd, sealed as said, and a writable view of it."""
    fd = os.memfd_create("kvkeep-test-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd, np.frombuffer(mmap.mmap(fd, num_bytes), dtype=np.uint8)


def make_namespace(
    page_bytes: int = 16_384, model: str = "test/model", **changes: int
) -> Namespace:
    """A namespace of one full-attention group."""
    base = Namespace(
        model_id=model,
        config_digest=b"c" * 32,
        weights_digest=b"w" * 32,
        host_version="1.0",
        kv_dtype="float16",
        attention_backend="TRTLLM",
        kv_layout="NHD",
        tokens_per_block=32,
        groups=(LayerGroup(layers=(0, 1), page_bytes=page_bytes),),
    )
    return msgspec.structs.replace(base, **changes)


def make_keys(seed: int, num_chunks: int) -> list[bytes]:
    """Chunk keys that differ for different seeds; only the server's view of them matters."""
    blob = np.random.default_rng(seed).bytes(16 * num_chunks)
    return [blob[i : i + 16] for i in range(0, len(blob), 16)]


@dataclass
class MappedExtent:
    """One extent as this engine maps it."""

    geometry: side.ExtentGiven
    view: NDArray[np.uint8]


class Engine:
    """One rank of an engine with one layer group: pool, registration, extents, loads and saves.

    Attributes:
        pages: uint8[num_pages, page_bytes], the pool.
        extents: those mapped, by id.
        session: of the registration.
    """

    def __init__(
        self,
        url: str,
        side_path: str,
        namespace: Namespace | None = None,
        num_pages: int = 64,
        instance: bytes | None = None,
        rank: int = 0,
        ring: bool = False,
    ) -> None:
        self.instance = instance or os.urandom(16)
        self.rank = rank
        self.ring = ring
        self.namespace = namespace or make_namespace()
        (self.shard,) = self.namespace.shards_of_rank(rank)
        self.page_bytes = self.namespace.groups[0].page_bytes
        self.num_pages = num_pages
        self.side = SideClient(side_path)
        welcome = self.side.hello(self.instance)
        assert isinstance(welcome, side.Welcome), welcome
        self.welcome = welcome
        self.wire = WireClient(url, self.instance)
        self.hello = self.wire.hello(welcome.token)
        self.pool_fd, flat = make_pool(num_pages * self.page_bytes)
        self.pages = flat.reshape(num_pages, self.page_bytes)
        self.extents: dict[int, MappedExtent] = {}
        self.session = 0
        self._next_store = 1
        self._is_pumping = False

    def share(self) -> Memory:
        """Passes the pool over the side socket; returns what REGISTER_KV_CACHE says of it."""
        pool = os.urandom(16)
        size_bytes = self.num_pages * self.page_bytes
        answer = self.side.offer(pool, self.pool_fd, size_bytes)
        assert isinstance(answer, side.PoolAccepted), answer
        return (RingMemory if self.ring else MemfdMemory)(pool=pool, size_bytes=size_bytes)

    def register(self, memory: Memory | None = None) -> RegisterKvCacheReply:
        """Registers the pool and maps what the server gives.

        Args:
            memory: what ``share`` said; passed now without it. A server holds 16 at most, so
                whoever tries again names the one that it has.
        """
        memory = memory or self.share()
        region = Region(offset_bytes=0, size_bytes=self.page_bytes, stride_bytes=self.page_bytes)
        reply = self.wire.call(
            RegisterKvCache(
                namespace=self.namespace,
                rank=self.rank,
                memory=memory,
                pools=(ShardPool(shard=self.shard, num_pages=self.num_pages, regions=(region,)),),
            ),
            RegisterKvCacheReply,
        )
        self.session = reply.session
        while len(self.extents) < reply.extents:
            self.take_side_packet()
        return reply

    def take_side_packet(self) -> side.FromServer:
        """Takes one packet of the side socket: maps or unmaps an extent and reports it."""
        packet, fds = self.side.receive()
        try:
            if isinstance(packet, side.ExtentGiven):
                view = np.frombuffer(
                    mmap.mmap(fds[0], packet.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8
                )
                geometry, arena = unpack_header(view[:4096].tobytes())
                assert isinstance(geometry, ExtentGeometry)
                assert geometry.extent == packet.extent
                assert arena == ArenaId(self.hello.arena)
                self.extents[packet.extent] = MappedExtent(packet, view)
                self._report_mapped(mapped=packet.extent)
            elif isinstance(packet, side.ExtentTaken):
                del self.extents[packet.extent]
                self._report_mapped(unmapped=packet.extent)
        finally:
            for fd in fds:
                os.close(fd)
        return packet

    def _report_mapped(self, mapped: int = 0, unmapped: int = 0) -> None:
        def ids(extent: int) -> bytes:
            return extent.to_bytes(4, "little") if extent else b""

        body = Mapped(session=self.session, mapped=ids(mapped), unmapped=ids(unmapped))
        self.wire.call(body, Done)

    def pump(self) -> None:
        """Takes whatever waits on the side socket.

        Does nothing while it is at that already, or before there is a session to report for.
        """
        if self._is_pumping or not self.session:
            return
        self._is_pumping = True
        try:
            poller = select.poll()
            poller.register(self.side.socket, select.POLLIN)
            while poller.poll(0):
                self.take_side_packet()
        finally:
            self._is_pumping = False

    def pump_while_waiting(self) -> None:
        """From now on takes side packets while it waits for replies, as a real engine would."""
        self.wire.on_wait = self.pump

    def store(self, keys: list[bytes], pages: list[int], start: int = 0) -> tuple[int, StoreReply]:
        """STOREs pages under keys from ordinal 0 on; returns the store id and the reply."""
        store = self._next_store
        return store, self.stored(self.submit_store(keys, pages, start))

    def submit_store(self, keys: list[bytes], pages: list[int], start: int = 0) -> int:
        """Sends a STORE without waiting; returns its seq."""
        store, self._next_store = self._next_store, self._next_store + 1
        return self.wire.submit(
            Store(
                session=self.session,
                store=store,
                request=store,
                shard=self.shard,
                start=start,
                parent=keys[start - 1] if start else b"",
                keys=b"".join(keys[start:]),
                pages=pack_pages(pages),
            )
        )

    def stored(self, seq: int, wait_s: float = WAIT_S) -> StoreReply:
        """The reply to a STORE that was sent before."""
        return expect(self.wire.reply(seq, wait_s), StoreReply)

    def commit(self, store: int, count: int) -> CommitReply:
        """COMMITs a store."""
        return self.wire.call(Commit(session=self.session, store=store, count=count), CommitReply)

    def save(self, keys: list[bytes], pages: list[int]) -> int:
        """STORE and COMMIT; returns how many chunks are held from then on."""
        store, stored = self.store(keys, pages)
        return stored.held + (self.commit(store, stored.copied).published if stored.copied else 0)

    def lookup(self, keys: list[bytes], request: int = 1) -> LookupReply:
        """LOOKUP from ordinal 0 on."""
        body = Lookup(session=self.session, request=request, start=0, keys=b"".join(keys))
        return self.wire.call(body, LookupReply)

    def read(self, lease: bytes, count: int) -> NDArray[np.uint8]:
        """RETRIEVEs and reads the leading chunks of a lease from this engine's own mappings."""
        body = Retrieve(session=self.session, lease=lease, start=0, count=count)
        reply = self.wire.call(body, RetrieveReply)
        slots = unpack_slots(reply.slots, count, reply.num_shards)
        result = np.empty((count, self.page_bytes), dtype=np.uint8)
        for row, slot in zip(result, slots[:, self.shard], strict=True):
            extent = self.extents[int(slot["extent"])]
            cut = extent.geometry
            begin = cut.data_offset_bytes + int(slot["slot"]) * cut.slot_bytes
            row[:] = extent.view[begin : begin + self.page_bytes]
        return result

    def release(self, lease: bytes) -> int:
        """RELEASEs a lease; returns the chunks it ended for."""
        return self.wire.call(Release(session=self.session, lease=lease), Released).chunks

    def close(self) -> None:
        """Closes connections and the pool; what the server does then is its business."""
        self.wire.close()
        self.side.close()
        os.close(self.pool_fd)

    def __enter__(self: E) -> E:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

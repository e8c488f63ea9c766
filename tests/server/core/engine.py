"""One simulated engine process of the world: it asks as a client does and checks what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.frames import Reply
from protocol.ids import InstanceId, PoolId, Token
from protocol.layout import (
    CudaIpcMemory,
    MemfdMemory,
    Memory,
    Region,
    RingMemory,
    ShardPool,
    pack_pages,
    unpack_slots,
)
from protocol.namespace import LayerGroup, Namespace
from protocol.session import ClientSession
from server.core import effects as fx

if TYPE_CHECKING:
    from tests.server.core.world import World

PAGE = 4096
SECOND = 1_000_000_000
Label = tuple[bytes, int] | None


def namespace(model: str = "m", page_bytes: int = PAGE, ranks: int = 1, **fields: Any) -> Namespace:
    groups = fields.pop("groups", None) or (LayerGroup(layers=(0,), page_bytes=page_bytes),)
    values: dict[str, Any] = {
        "model_id": model,
        "config_digest": b"",
        "weights_digest": b"",
        "host_version": "1",
        "kv_dtype": "float32",
        "attention_backend": "x",
        "kv_layout": "NHD",
        "tokens_per_block": 32,
        "num_ranks": ranks,
        "groups": groups,
    }
    values.update(fields)
    return Namespace(**values)


@dataclass
class Claim:
    """What a reader may still read: chunk and shard to descriptor."""

    key: bytes
    shard: int
    extent: int
    slot: int
    generation: int


class Engine:
    """One process: one rank of one engine."""

    def __init__(self, world: World, name: str, rank: int, pages: int) -> None:
        self.world = world
        self.rank = rank
        self.instance = InstanceId(name.encode().rjust(16, b"."))
        self.process = fx.ProcessId(world.next_process)
        world.next_process += 1
        self.peer = fx.PeerId(b"\0" + self.process.to_bytes(4, "big"))
        self.token = Token(world.random.randbytes(16))
        self.client = ClientSession(self.instance)
        self.replies: dict[int, Reply] = {}
        self.num_replies: dict[int, int] = {}
        self.pages: list[Label] = [None] * pages
        self.pool = PoolId(world.random.randbytes(16))
        self.session = 0
        #: Digest of the salt of its requests.
        self.tenant = b""
        self.ring = False
        #: Uuid of the device that has its pages; empty for host memory.
        self.device = b""
        self.dead = False
        self.mapped: set[int] = set()
        self.to_map: list[int] = []
        self.to_unmap: list[int] = []
        self.claims: dict[bytes, list[Claim]] = {}
        self.next_store = 1
        world.engines[self.process] = self
        world.core.process_joined(self.process, self.token, self.instance, world.now_ns)
        self.space = namespace()
        self.hello()

    def hello(self) -> Reply:
        seq, frame = self.client.hello(self.token)
        self.world.core.request(self.peer, frame, self.world.now_ns)
        self.world.pump()
        return self.replies[seq]

    # --- requests -------------------------------------------------------------------------

    def send(self, body: m.Request, timeout_ns: int = 3600 * SECOND) -> int:
        world = self.world
        world.step()
        seq, frame = self.client.request(body, world.now_ns, timeout_ns)
        world.core.request(self.peer, frame, world.now_ns)
        return seq

    def ask(self, body: m.Request, timeout_ns: int = 3600 * SECOND) -> Any:
        """Sends, lets the world come to rest, and returns the reply's body or raises."""
        return self.answer(self.begin(body, timeout_ns))

    def begin(self, body: m.Request, timeout_ns: int = 3600 * SECOND) -> int:
        """Sends and lets the world come to rest; the reply may come later."""
        seq = self.send(body, timeout_ns)
        self.world.pump()
        return seq

    def answer(self, seq: int) -> Any:
        reply = self.replies[seq]
        if reply.error is not None:
            raise reply.error
        return reply.body

    def receive(self, effect: fx.SendReply) -> None:
        if effect.peer != self.peer:
            return
        reply = self.client.receive(effect.frame, self.world.now_ns)
        assert reply is not None, "a second reply, or one nobody asked for"
        self.replies[reply.seq] = reply

    def given(self, effect: fx.GiveExtent) -> None:
        if self.dead:
            return
        self.to_map.append(effect.geometry.extent)
        if self.world.auto_map and self.session:
            self.report()

    def taken(self, effect: fx.TakeExtent) -> None:
        if self.dead:
            return
        self.to_unmap.append(effect.extent)
        if self.world.auto_map:
            self.report()

    def report(self) -> None:
        """Maps what was given and unmaps what was taken, and says so."""
        mapped, unmapped = self.to_map, self.to_unmap
        self.to_map, self.to_unmap = [], []
        self.mapped |= set(mapped)
        self.mapped -= set(unmapped)
        self.send(
            m.Mapped(
                session=self.session,
                mapped=np.array(mapped, "<u4").tobytes(),
                unmapped=np.array(unmapped, "<u4").tobytes(),
            )
        )

    def register_body(self, space: Namespace) -> m.RegisterKvCache:
        self.space = space
        shards = space.shards_of_rank(self.rank)
        # A page is a label, so the groups' pages may lie over each other.
        size = max(group.page_bytes for group in space.groups) * len(self.pages)
        memory: Memory = (RingMemory if self.ring else MemfdMemory)(pool=self.pool, size_bytes=size)
        if self.device:
            memory = CudaIpcMemory(
                handle=self.pool * 4,
                device_uuid=self.device,
                base_offset_bytes=0,
                size_bytes=size,
            )
        return m.RegisterKvCache(
            namespace=space,
            rank=self.rank,
            memory=memory,
            pools=tuple(
                ShardPool(
                    shard=shard,
                    num_pages=len(self.pages),
                    regions=(
                        Region(
                            offset_bytes=0,
                            size_bytes=group.page_bytes,
                            stride_bytes=group.page_bytes,
                        ),
                    ),
                )
                for shard, group in zip(shards, space.groups, strict=True)
            ),
        )

    def register(self, space: Namespace, timeout_ns: int = 3600 * SECOND) -> int:
        body = self.register_body(space)
        size = body.memory.size_bytes if body.memory is not None else 0
        if not self.device:
            self.world.core.pool_offered(self.process, self.pool, size)
        reply = self.ask(body, timeout_ns)
        self.session = reply.session
        if self.world.auto_map:
            self.report()
            self.world.pump()
        return self.session

    def store_body(
        self, keys: list[bytes], start: int = 0, stop: int | None = None, shard: int | None = None
    ) -> m.Store:
        stop = len(keys) if stop is None else stop
        shard = self.space.shards_of_rank(self.rank)[0] if shard is None else shard
        blocks = self.space.chunk_blocks
        pages: list[int] = []
        for key in keys[start:stop]:
            for _ in range(blocks):
                page = len(pages) % len(self.pages)
                self.pages[page] = (key, shard)
                pages.append(page)
        assert len(pages) <= len(self.pages), "the test's pool is too small"
        store, self.next_store = self.next_store, self.next_store + 1
        return m.Store(
            session=self.session,
            store=store,
            request=1,
            shard=shard,
            start=start,
            parent=keys[start - 1] if start else b"",
            keys=b"".join(keys[start:stop]),
            pages=pack_pages(pages),
            tenant=self.tenant,
        )

    def store(self, keys: list[bytes], start: int = 0, shard: int | None = None) -> m.StoreReply:
        body = self.store_body(keys, start, shard=shard)
        reply: m.StoreReply = self.ask(body)
        self.last_store = body.store
        return reply

    def commit(self, store: int, count: int) -> m.CommitReply:
        reply: m.CommitReply = self.ask(m.Commit(session=self.session, store=store, count=count))
        return reply

    def save(self, keys: list[bytes], start: int = 0, shard: int | None = None) -> int:
        """STORE and COMMIT; returns chunks held afterwards as far as this tells."""
        done = start
        reply = self.store(keys, start, shard)
        done += reply.held
        if reply.copied:
            done += self.commit(self.last_store, reply.copied).published
        return done

    def lookup(self, keys: list[bytes], request: int = 1, start: int = 0) -> m.LookupReply:
        reply: m.LookupReply = self.ask(
            m.Lookup(
                session=self.session or 1,
                request=request,
                start=start,
                keys=b"".join(keys[start:]),
                tenant=self.tenant,
            )
        )
        return reply

    def retrieve(self, keys: list[bytes], lease: bytes, start: int, count: int) -> NDArray[np.void]:
        reply: m.RetrieveReply = self.ask(
            m.Retrieve(session=self.session, lease=lease, start=start, count=count)
        )
        slots = unpack_slots(reply.slots, count, reply.num_shards)
        self.claim(keys, lease, start, slots)
        return slots

    def check_complete(self, start: int, slots: NDArray[np.void]) -> None:
        """All that a match of chunks from ``start`` on needs has a slot."""
        chunk_tokens = self.space.tokens_per_block * self.space.chunk_blocks
        end = (start + len(slots)) * chunk_tokens
        for number, row in enumerate(slots):
            last = (start + number + 1) * chunk_tokens
            for shard in range(self.space.num_shards):
                window = self.space.groups[self.space.group_of(shard)].window_tokens
                if not window or last > end - window:
                    assert row[shard]["extent"], (number, shard, "is needed and has no slot")
                if not row[shard]["extent"]:
                    assert not row[shard]["generation"]
                    assert not row[shard]["slot"]

    def claim(self, keys: list[bytes], lease: bytes, start: int, slots: NDArray[np.void]) -> None:
        """Notes that every rank of this engine may read its shards, and checks them now."""
        world = self.world
        for engine in world.engines.values():
            if engine.instance != self.instance or engine.dead:
                continue
            mine = engine.claims.setdefault(lease, [])
            for number, row in enumerate(slots):
                for shard in self.space.shards_of_rank(engine.rank):
                    one = row[shard]
                    if not one["extent"]:
                        continue
                    extent, slot = int(one["extent"]), int(one["slot"])
                    record = world.extents[extent].records[slot]
                    assert record is not None
                    assert int(record["generation"]) == int(one["generation"])
                    assert extent in engine.mapped, "offered what a reader has not mapped"
                    key = keys[start + number]
                    assert bytes(record["key"]) == key
                    mine.append(Claim(key, shard, extent, slot, int(one["generation"])))
        world.check_claims()

    def release(self, lease: bytes, everyone: bool = False) -> m.Released:
        self.claims.pop(lease, None)
        if everyone:
            for engine in self.world.engines.values():
                if engine.instance == self.instance:
                    engine.claims.pop(lease, None)
        reply: m.Released = self.ask(
            m.Release(session=self.session, lease=lease, all_readers=everyone)
        )
        return reply

    def end(self, request: int = 1) -> m.Released:
        reply: m.Released = self.ask(m.EndSession(session=self.session, request=request))
        return reply

    def unregister_body(self) -> m.Unregister:
        """Unmaps first: UNREGISTER says that this rank reads nothing any more."""
        self.mapped.clear()
        self.claims.clear()
        return m.Unregister(session=self.session)

    def die(self) -> None:
        self.dead = True
        self.claims.clear()
        self.world.step()
        self.world.core.process_exited(self.process, self.world.now_ns)
        self.world.pump()

    def error(self, body: m.Request) -> ErrorCode:
        """The code a request is refused with."""
        try:
            self.ask(body)
        except ReplyError as error:
            return error.code
        raise AssertionError("the request was accepted")

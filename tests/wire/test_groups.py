"""Several layer groups on several ranks over the wire, every byte checked.

Two ranks; a group with full attention, one with a window, one that all ranks hold alike; pages of
different sizes, in parts that lie apart in the pool, with gaps between them. What one engine saved,
another loads: all that its windows need, and nothing is said to be there that is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from protocol import side
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
    Commit,
    CommitReply,
    Lookup,
    LookupReply,
    RegisterKvCache,
    RegisterKvCacheReply,
    Release,
    Released,
    Retrieve,
    RetrieveReply,
    Stats,
    StatsReply,
    Store,
    StoreReply,
)
from protocol.namespace import LayerGroup
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess

RANKS, PAGES, CHUNK_BLOCKS = 2, 32, 2
BLOCK_TOKENS = 32
PARTS = ((4096, 512), (1024,), (256, 256, 256))
"""Bytes of each part of a page, by group."""
FULL, WINDOW, SHARED = range(3)
WINDOW_TOKENS = 2 * CHUNK_BLOCKS * BLOCK_TOKENS
CHUNKS = 10

SPACE = msgspec.structs.replace(
    make_namespace(model="groups"),
    num_ranks=RANKS,
    chunk_blocks=CHUNK_BLOCKS,
    groups=tuple(
        LayerGroup(
            layers=(group,),
            page_bytes=sum(parts),
            window_tokens=WINDOW_TOKENS if group == WINDOW else 0,
            replicated=group == SHARED,
        )
        for group, parts in enumerate(PARTS)
    ),
)


class Rank(Engine):
    """One rank whose pages lie in parts: ``regions`` with a gap after each part."""

    def __init__(
        self, server: ServerProcess, instance: bytes, rank: int, ring: bool = False
    ) -> None:
        self.regions: list[list[Region]] = []
        offset = 4096
        for parts in PARTS:
            self.regions.append([])
            for size in parts:
                stride = size + 64 * (1 + rank)
                self.regions[-1].append(
                    Region(offset_bytes=offset, size_bytes=size, stride_bytes=stride)
                )
                offset += stride * PAGES
        plain = make_namespace(page_bytes=4096, model="only for the pool")
        super().__init__(server.url, server.side_path, plain, -(-offset // 4096), instance)
        self.space, self.rank, self.ring = SPACE, rank, ring
        self.flat = self.pages.reshape(-1)
        self.flat[:] = np.random.default_rng(rank).integers(0, 256, self.flat.size, np.uint8)

    def register(self, memory: Memory | None = None) -> RegisterKvCacheReply:
        assert memory is None
        pool, size_bytes = os.urandom(16), self.flat.size
        assert isinstance(self.side.offer(pool, self.pool_fd, size_bytes), side.PoolAccepted)
        kind = RingMemory if self.ring else MemfdMemory
        reply = self.wire.call(
            RegisterKvCache(
                namespace=SPACE,
                rank=self.rank,
                memory=kind(pool=pool, size_bytes=size_bytes),
                pools=tuple(
                    ShardPool(shard=shard, num_pages=PAGES, regions=tuple(regions))
                    for shard, regions in zip(
                        SPACE.shards_of_rank(self.rank), self.regions, strict=True
                    )
                ),
            ),
            RegisterKvCacheReply,
        )
        self.session = reply.session
        while len(self.extents) < reply.extents:
            self.take_side_packet()
        return reply

    def page(self, group: int, page: int) -> NDArray[np.uint8]:
        """One page: its parts, concatenated."""
        begins = [(r, r.offset_bytes + r.stride_bytes * page) for r in self.regions[group]]
        return np.concatenate([self.flat[at : at + region.size_bytes] for region, at in begins])

    def write(self, group: int, page: int, seed: int) -> None:
        """Fills a page with bytes of its own."""
        content = np.random.default_rng(seed).integers(0, 256, sum(PARTS[group]), np.uint8)
        done = 0
        for region in self.regions[group]:
            at = region.offset_bytes + region.stride_bytes * page
            self.flat[at : at + region.size_bytes] = content[done : done + region.size_bytes]
            done += region.size_bytes

    def save_group(self, group: int, keys: list[bytes], start: int, stop: int) -> StoreReply:
        """STOREs and COMMITs chunks of one group from pages of the same ordinals."""
        store, self._next_store = self._next_store, self._next_store + 1
        pages = list(range(start * CHUNK_BLOCKS, stop * CHUNK_BLOCKS))
        body = Store(
            session=self.session,
            store=store,
            request=1,
            shard=SPACE.shard(group, self.rank),
            start=start,
            parent=keys[start - 1] if start else b"",
            keys=b"".join(keys[start:stop]),
            pages=pack_pages(pages),
        )
        reply = self.wire.call(body, StoreReply)
        if reply.copied:
            done = Commit(session=self.session, store=store, count=reply.copied)
            assert self.wire.call(done, CommitReply).published == reply.copied
        return reply

    def slot_bytes(self, slot: np.void, group: int) -> NDArray[np.uint8]:
        """What a descriptor leads to in this rank's own mapping: pages, one after another."""
        extent = self.extents[int(slot["extent"])]
        begin = extent.geometry.data_offset_bytes + int(slot["slot"]) * extent.geometry.slot_bytes
        payload = extent.view[begin : begin + extent.geometry.payload_bytes]
        return payload.reshape(CHUNK_BLOCKS, sum(PARTS[group]))


def seed_of(group: int, rank: int, page: int) -> int:
    """Equal on all ranks for the group that they hold alike."""
    return 1000 * group + 100 * (0 if group == SHARED else rank) + page + 1


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(
        short_dir, shm_dir / "a", "--l1-size", "16M", "--extent-size", "256K"
    ) as process:
        yield process


def engine(stack: ExitStack, server: ServerProcess, filled: bool, ring: bool = False) -> list[Rank]:
    instance, ranks = os.urandom(16), []
    for rank in range(RANKS):
        made = Rank(server, instance, rank, ring)
        stack.callback(made.close)
        made.register()
        for group in range(len(PARTS)):
            for page in range(PAGES):
                if filled:
                    made.write(group, page, seed_of(group, rank, page))
        ranks.append(made)
    return ranks


def ask(ranks: list[Rank], keys: list[bytes], start: int = 0) -> LookupReply:
    for rank in ranks:
        rank.pump()
    blob = b"".join(keys[start:])
    body = Lookup(session=ranks[0].session, request=1, start=start, keys=blob)
    return ranks[0].wire.call(body, LookupReply)


@pytest.mark.parametrize("ring", [False, True], ids=["pool", "ring"])
def test_groups_and_ranks_load_what_others_saved(server: ServerProcess, ring: bool) -> None:
    keys = make_keys(7, CHUNKS)
    with ExitStack() as stack:
        first = engine(stack, server, filled=True, ring=ring)
        second = engine(stack, server, filled=False)
        assert ask(second, keys).ready == 0
        for rank in first:
            assert rank.save_group(FULL, keys, 0, CHUNKS).copied == CHUNKS
        assert first[1].save_group(SHARED, keys, 0, CHUNKS).copied == CHUNKS
        assert first[0].save_group(SHARED, keys, 0, CHUNKS).held == CHUNKS
        assert ask(second, keys).ready == 0  # no window yet
        for rank in first:  # what a window still has when its prompt is done
            assert rank.save_group(WINDOW, keys, CHUNKS - 2, CHUNKS).copied == 2
        found = ask(second, keys)
        assert found.ready == CHUNKS
        assert ask(second, keys[:-1]).ready == 0  # ends where the window was not saved
        found = ask(second, keys)
        body = Retrieve(session=second[0].session, lease=found.lease, start=0, count=CHUNKS)
        reply = second[0].wire.call(body, RetrieveReply)
        assert reply.num_shards == RANKS + RANKS + 1
        slots = unpack_slots(reply.slots, CHUNKS, reply.num_shards)
        for rank in second:
            check(rank, slots)
        values = second[0].wire.call(Stats(), StatsReply).values
        # One pin for each shard and reader; the shared one is pinned once.
        assert values["pinned_slots"] == CHUNKS * RANKS + CHUNKS + 2 * RANKS
        for rank, ended in zip(second, (0, CHUNKS), strict=True):
            given = Release(session=rank.session, lease=found.lease)
            assert rank.wire.call(given, Released).chunks == ended
        values = second[0].wire.call(Stats(), StatsReply).values
        assert (values["pinned_slots"], values["leases"]) == (0, 0)


def check(rank: Rank, slots: NDArray[np.void]) -> None:
    for chunk in range(CHUNKS):
        for group in range(len(PARTS)):
            slot = slots[chunk, SPACE.shard(group, rank.rank)]
            if group == WINDOW and chunk < CHUNKS - 2:
                assert (slot["extent"], slot["slot"], slot["generation"]) == (0, 0, 0)
                continue
            pages = rank.slot_bytes(slot, group)
            for number, page in enumerate(pages):
                seed = seed_of(group, rank.rank, chunk * CHUNK_BLOCKS + number)
                expected = np.random.default_rng(seed).integers(0, 256, page.size, np.uint8)
                assert np.array_equal(page, expected), (chunk, group, number)


def test_a_missing_shard_of_one_rank_is_a_miss_for_all(server: ServerProcess) -> None:
    keys = make_keys(8, CHUNKS)
    with ExitStack() as stack:
        ranks = engine(stack, server, filled=True)
        for rank in ranks:
            rank.save_group(FULL, keys, 0, CHUNKS)
            rank.save_group(SHARED, keys, 0, CHUNKS)
        ranks[0].save_group(WINDOW, keys, 0, CHUNKS)
        ranks[1].save_group(WINDOW, keys, 0, 6)
        assert ask(ranks, keys).ready == 6
        # What lies before ``start`` is the engine's own, so only what follows is needed.
        assert ask(ranks, keys, start=5).ready == 1
        assert ask(ranks, keys, start=6).ready == 0
        assert ranks[1].save_group(WINDOW, keys, 7, CHUNKS).copied == CHUNKS - 7
        assert ask(ranks, keys).ready == CHUNKS
        assert ask(ranks, keys[:8]).ready == 6  # chunk 6 of the window is not there
        assert ask(ranks, keys, start=7).ready == CHUNKS - 7

"""B48: pages lie where base, offset and stride say; ids outside the pool are refused, unwritten."""

from __future__ import annotations

import os

import numpy as np
import pytest

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import MemfdMemory, Region, ShardPool
from protocol.messages import RegisterKvCache, RegisterKvCacheReply, Store
from tests.faults.bystander import Bystander, engaged, read_all, stats
from tests.wire.client import Engine, expect, make_keys, make_namespace, make_pool
from tests.wire.process import ServerProcess

PAGE = 16_384


def register(
    engine: Engine, fd: int, size_bytes: int, regions: tuple[Region, ...], num_pages: int
) -> RegisterKvCacheReply:
    pool = os.urandom(16)
    assert isinstance(engine.side.offer(pool, fd, size_bytes), side.PoolAccepted)
    reply = engine.wire.call(
        RegisterKvCache(
            namespace=engine.namespace,
            rank=0,
            memory=MemfdMemory(pool=pool, size_bytes=size_bytes),
            pools=(ShardPool(shard=0, num_pages=num_pages, regions=regions),),
        ),
        RegisterKvCacheReply,
    )
    engine.session = reply.session
    while len(engine.extents) < reply.extents:
        engine.take_side_packet()
    engine.pump_while_waiting()
    return reply


@pytest.mark.parametrize(
    ("regions", "num_pages"),
    [
        ((Region(offset_bytes=3 * 4096 + 64, size_bytes=PAGE, stride_bytes=PAGE),), 10),
        ((Region(offset_bytes=1, size_bytes=PAGE, stride_bytes=PAGE + 512),), 10),
        (
            (
                Region(offset_bytes=100, size_bytes=4096, stride_bytes=9000),
                Region(offset_bytes=4500, size_bytes=384, stride_bytes=9000),
                Region(offset_bytes=150_000, size_bytes=11_904, stride_bytes=12_000),
            ),
            10,
        ),
    ],
    ids=["offset", "offset and stride", "three regions"],
)
def test_the_bytes_saved_are_those_the_descriptor_names(
    server: ServerProcess, bystander: Bystander, regions: tuple[Region, ...], num_pages: int
) -> None:
    num_bytes = 1 << 19
    fd, memory = make_pool(num_bytes)
    memory[:] = np.random.default_rng(4).integers(0, 256, num_bytes, dtype=np.uint8)
    before = memory.copy()
    pages = [num_pages - 1, 0, 4, 3]
    keys = make_keys(len(regions) * 7, 4)
    namespace = make_namespace(model=f"b48/{regions[0]}")
    with engaged(server, namespace, register=False) as engine:
        register(engine, fd, num_bytes, regions, num_pages)
        assert engine.save(keys, pages) == 4
        data = read_all(engine, keys)
    expected = [
        np.concatenate(
            [before[r.offset_bytes + r.stride_bytes * page :][: r.size_bytes] for r in regions]
        )
        for page in pages
    ]
    assert np.array_equal(data, np.stack(expected))
    assert np.array_equal(memory, before)  # the server never writes into a pool
    os.close(fd)
    bystander.check()


@pytest.mark.parametrize(
    "pages",
    [[-1], [64], [0, 1, -1], [0, 64, 1], [2**31 - 1], [-(2**31)], [63, 63, 10_000]],
    ids=str,
)
def test_ids_outside_the_pool_are_refused_and_nothing_is_written(
    server: ServerProcess, bystander: Bystander, pages: list[int]
) -> None:
    with engaged(server, make_namespace(model=f"b48/bounds {pages}")) as engine:
        keys = make_keys(50, len(pages))
        before = stats(engine)
        with pytest.raises(ReplyError) as caught:
            engine.store(keys, pages)
        assert caught.value.code == ErrorCode.PAGE_OUT_OF_RANGE
        bad = next(page for page in pages if not 0 <= page < 64)
        assert caught.value.detail == {"page": bad, "num_pages": 64}
        assert f"page {bad} is not within 0..63" in caught.value.message
        after = stats(engine)
        for name in ("slots_held", "slots_reserved", "stores", "copies_in_flight", "chunks"):
            assert after[name] == before[name], name
        assert engine.lookup(keys).ready == 0
        assert engine.save(keys, list(range(len(pages)))) == len(pages)
    bystander.check()


BAD_POOLS = [
    (Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=PAGE), 65, ErrorCode.POOL_INVALID),
    (Region(offset_bytes=1, size_bytes=PAGE, stride_bytes=PAGE), 64, ErrorCode.POOL_INVALID),
    (Region(offset_bytes=1 << 44, size_bytes=PAGE, stride_bytes=PAGE), 1, ErrorCode.POOL_INVALID),
    (
        Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=1 << 44),
        (1 << 31) - 1,
        ErrorCode.POOL_INVALID,
    ),
    (Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=PAGE - 1), 4, ErrorCode.POOL_INVALID),
    (Region(offset_bytes=0, size_bytes=8192, stride_bytes=8192), 4, ErrorCode.PAGE_SIZE_MISMATCH),
]


@pytest.mark.parametrize(("region", "num_pages", "code"), BAD_POOLS)
def test_pages_that_leave_their_memory_are_refused_at_registration(
    server: ServerProcess, bystander: Bystander, region: Region, num_pages: int, code: ErrorCode
) -> None:
    with engaged(server, make_namespace(model="b48/pools"), register=False) as engine:
        with pytest.raises(ReplyError) as caught:
            register(engine, engine.pool_fd, 64 * PAGE, (region,), num_pages)
        assert caught.value.code == code
        assert any(character.isdigit() for character in caught.value.message)
        engine.register()  # the same connection may try again with the truth
        engine.pump_while_waiting()
        assert engine.save(make_keys(51, 2), [1, 2]) == 2
    bystander.check()


def test_a_page_of_another_session_cannot_be_named(
    server: ServerProcess, bystander: Bystander
) -> None:
    """A STORE for somebody else's session reads nobody's pool."""
    with engaged(server, make_namespace(model="b48/other")) as engine:
        body = Store(
            session=bystander.engine.session,
            store=1,
            request=1,
            shard=0,
            start=0,
            parent=b"",
            keys=make_keys(52, 1)[0],
            pages=b"\0\0\0\0",
        )
        with pytest.raises(ReplyError) as caught:
            expect(engine.wire.reply(engine.wire.submit(body)), RegisterKvCacheReply)
        assert caught.value.code == ErrorCode.UNKNOWN_SESSION
    bystander.check()

"""P06: an engine registers a wrong size, offset or stride: refused, or only its own copies suffer.

The copier stays the same process, every other engine's bytes stay, and what the wrong one stored is
known under its own keys alone. That offsets beyond the pool are refused is in B48 as well.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import MemfdMemory, Region, ShardPool
from protocol.messages import RegisterKvCache, RegisterKvCacheReply
from tests.faults.bystander import Bystander, engaged, fill, read_all
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess

PAGE = 16_384
POOL = 64 * PAGE

REFUSED = [
    ("one page too many", Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=PAGE), 65),
    ("an offset too many", Region(offset_bytes=1, size_bytes=PAGE, stride_bytes=PAGE), 64),
    ("a stride too long", Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=PAGE + 1), 64),
    ("a stride too short", Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=PAGE - 1), 8),
    ("a size too long", Region(offset_bytes=0, size_bytes=PAGE + 1, stride_bytes=2 * PAGE), 8),
    ("a size too short", Region(offset_bytes=0, size_bytes=PAGE - 1, stride_bytes=PAGE), 8),
    ("far away", Region(offset_bytes=1 << 43, size_bytes=PAGE, stride_bytes=PAGE), 1),
    ("pages far apart", Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=1 << 43), 64),
]

#: Within the pool, so nobody else can know that they are wrong.
WRONG = [
    ("shifted", Region(offset_bytes=8192, size_bytes=PAGE, stride_bytes=PAGE), 63),
    ("every other page", Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=2 * PAGE), 32),
    ("unaligned", Region(offset_bytes=13, size_bytes=PAGE, stride_bytes=PAGE + 7), 60),
]


def register(engine: Engine, region: Region, num_pages: int, size_bytes: int = POOL) -> None:
    """Registers with a description of the test's choice."""
    pool = os.urandom(16)
    assert isinstance(engine.side.offer(pool, engine.pool_fd, POOL), side.PoolAccepted)
    reply = engine.wire.call(
        RegisterKvCache(
            namespace=engine.namespace,
            rank=0,
            memory=MemfdMemory(pool=pool, size_bytes=size_bytes),
            pools=(ShardPool(shard=0, num_pages=num_pages, regions=(region,)),),
        ),
        RegisterKvCacheReply,
    )
    engine.session = reply.session
    while len(engine.extents) < reply.extents:
        engine.take_side_packet()
    engine.pump_while_waiting()


@pytest.mark.parametrize(("name", "region", "num_pages"), REFUSED, ids=[r[0] for r in REFUSED])
def test_p06_what_cannot_be_is_refused(
    server: ServerProcess, bystander: Bystander, name: str, region: Region, num_pages: int
) -> None:
    copiers = server.children()
    with engaged(server, make_namespace(model=f"p06/{name}"), register=False) as engine:
        with pytest.raises(ReplyError) as caught:
            register(engine, region, num_pages)
        assert caught.value.code in (ErrorCode.POOL_INVALID, ErrorCode.PAGE_SIZE_MISMATCH)
    bystander.check()
    assert server.children() == copiers


@pytest.mark.parametrize("size_bytes", [POOL - 1, POOL + 1, 1, 1 << 44])
def test_p06_a_size_other_than_the_files_is_refused(
    server: ServerProcess, bystander: Bystander, size_bytes: int
) -> None:
    whole = Region(offset_bytes=0, size_bytes=PAGE, stride_bytes=PAGE)
    copiers = server.children()
    with engaged(server, make_namespace(model="p06/size"), register=False) as engine:
        with pytest.raises(ReplyError) as caught:
            register(engine, whole, 1, size_bytes)
        assert caught.value.code == ErrorCode.POOL_INVALID
        answer = engine.side.offer(os.urandom(16), engine.pool_fd, size_bytes)
        assert isinstance(answer, side.SideError)
        assert answer.code == ErrorCode.POOL_INVALID
    bystander.check()
    assert server.children() == copiers


@pytest.mark.parametrize(("name", "region", "num_pages"), WRONG, ids=[w[0] for w in WRONG])
def test_p06_what_is_merely_wrong_spoils_its_own_chunks_alone(
    server: ServerProcess, bystander: Bystander, name: str, region: Region, num_pages: int
) -> None:
    copiers = server.children()
    with engaged(server, make_namespace(model=f"p06/{name}"), register=False) as engine:
        fill(engine, 3)
        register(engine, region, num_pages)
        keys = make_keys(1, 16)
        assert engine.save(keys, list(range(16))) == 16
        flat = engine.pages.reshape(-1)
        starts = [region.offset_bytes + page * region.stride_bytes for page in range(16)]
        expected = np.stack([flat[start : start + PAGE] for start in starts])
        assert np.array_equal(read_all(engine, keys), expected)  # what it said, to the byte
        bystander.check()
    assert server.children() == copiers


def test_p06_a_pool_whose_memory_was_taken_away_again(
    server: ServerProcess, bystander: Bystander
) -> None:
    """Holes are punched through a seal against shrinking: the copier reads zeros, and lives."""
    copiers = server.children()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with engaged(server, make_namespace(model="p06/holes")) as engine:
        fill(engine, 4)
        assert libc.fallocate(engine.pool_fd, 0x3, 0, 32 * PAGE) == 0  # PUNCH_HOLE | KEEP_SIZE
        keys = make_keys(1, 64)
        assert engine.save(keys, list(range(64))) == 64
        data = read_all(engine, keys)
        assert not data[:32].any()
        assert np.array_equal(data[32:], engine.pages[32:])
        bystander.check()
    assert server.children() == copiers

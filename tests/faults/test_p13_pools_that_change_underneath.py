"""P13: a peer cannot shrink its pool under the copier, and holes in it are zeros, not signals."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

from protocol import side
from protocol.errors import ErrorCode
from tests.faults.bystander import Bystander, engaged, fill, read_all
from tests.wire.client import SideClient, make_keys, make_namespace, make_pool
from tests.wire.process import ServerProcess

SHRINK, GROW, SEAL = 2, 4, 1


@pytest.mark.parametrize("seals", [0, SEAL, SHRINK, GROW, SEAL | GROW, SEAL | SHRINK])
def test_p13_a_pool_that_may_shrink_or_grow_is_refused(
    server: ServerProcess, bystander: Bystander, seals: int
) -> None:
    client = SideClient(server.side_path)
    client.hello(os.urandom(16))
    fd, _ = make_pool(1 << 16, seals)
    answer = client.offer(b"p" * 16, fd, 1 << 16)
    assert isinstance(answer, side.SideError)
    assert answer.code == ErrorCode.POOL_INVALID
    assert "seal" in answer.message.lower()
    os.close(fd)
    client.close()
    bystander.check()


def test_p13_a_registered_pool_cannot_be_truncated(
    server: ServerProcess, bystander: Bystander
) -> None:
    with engaged(server, make_namespace(model="p13/truncate")) as engine:
        with pytest.raises(PermissionError):
            os.ftruncate(engine.pool_fd, 4096)
        with pytest.raises(PermissionError):
            os.ftruncate(engine.pool_fd, 1 << 30)
        fill(engine, 1)
        keys = make_keys(1, 64)
        assert engine.save(keys, list(range(64))) == 64
        assert np.array_equal(read_all(engine, keys), engine.pages)
    bystander.check()


def test_p13_holes_punched_into_a_pool_while_it_is_copied(
    server: ServerProcess, bystander: Bystander
) -> None:
    """Pages taken out of the file come back as zeros: wrong for their owner alone, no SIGBUS."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    keep_size_and_punch = 3
    [copier] = server.children()
    with engaged(server, make_namespace(model="p13/holes")) as engine:
        for seed in range(10):
            fill(engine, seed)
            before = engine.pages.copy()
            hole = (seed * 7 % 60) * engine.page_bytes
            keys = make_keys(30 + seed, 64)
            assert libc.fallocate(engine.pool_fd, keep_size_and_punch, hole, 65_536) == 0
            assert engine.save(keys, list(range(64))) == 64
            data = read_all(engine, keys)
            same = (data == before).all(axis=1)
            zero = (data == 0).all(axis=1)
            assert (same | zero).all()
            assert zero.sum() == 4
    assert server.children() == [copier]
    bystander.check()


def test_p13_a_pool_that_is_no_memory_file_is_refused(
    server: ServerProcess, bystander: Bystander
) -> None:
    for path in ("/dev/zero", "/dev/shm", "/etc/passwd"):
        fd = os.open(path, os.O_RDONLY)
        client = SideClient(server.side_path)
        client.hello(os.urandom(16))
        try:
            answer = client.offer(b"q" * 16, fd, 4096)
        finally:
            os.close(fd)
            client.close()
        assert isinstance(answer, side.SideError), path
        assert answer.code == ErrorCode.POOL_INVALID
    bystander.check()


def test_p13_a_descriptor_closed_after_it_was_passed_is_still_good(server: ServerProcess) -> None:
    with engaged(server, make_namespace(model="p13/closed")) as engine:
        os.close(engine.pool_fd)
        engine.pool_fd, _ = make_pool(4096)  # for close()
        fill(engine, 3)
        keys = make_keys(2, 8)
        assert engine.save(keys, list(range(8))) == 8
        assert np.array_equal(read_all(engine, keys), engine.pages[:8])

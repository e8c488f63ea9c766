"""The copier as a process: obeys in order, answers once, ends with its socket and its parent."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from server.copier.wire import Answer, Command, Kind, copy_commands
from tests.server.copier.child import Child, check_it_dies_with_its_parent
from tests.wire.process import ROOT


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(["-m", "server.copier.host"]) as made:
        assert made.ready == Answer(Kind.READY, made.process.pid, None)
        yield made


def memory(size: int) -> tuple[int, mmap.mmap]:
    fd = os.memfd_create("kvkeep-test")
    os.ftruncate(fd, size)
    return fd, mmap.mmap(fd, size)


def test_maps_copies_reports_and_ends_with_its_socket(child: Child) -> None:
    pool_fd, pool = memory(1 << 20)
    extent_fd, extent = memory(1 << 20)
    pool[:] = os.urandom(1 << 20)
    map_pool = Command(Kind.MAP_POOL, 3, size_bytes=1 << 20)
    map_extent = Command(Kind.MAP_EXTENT, 4, size_bytes=1 << 20, offset_bytes=4096)
    assert child.call(map_pool, pool_fd) == Answer(Kind.MAP_POOL, 3, None)
    assert child.call(map_extent, extent_fd) == Answer(Kind.MAP_EXTENT, 4, None)
    os.close(pool_fd)
    os.close(extent_fd)
    num_parts = 5000  # more than one packet
    sources = np.arange(num_parts, dtype=np.int64) * 128
    targets = 4096 + sources[::-1].copy()
    lengths = np.full(num_parts, 128, dtype=np.int64)
    for command in copy_commands(77, 3, 4, sources, targets, lengths):
        child.send(command)
    assert child.answer() == Answer(Kind.COPY, 77, None)
    for source, target in zip(sources[::97], targets[::97], strict=True):
        assert extent[target : target + 128] == pool[source : source + 128]
    assert child.call(Command(Kind.UNMAP_POOL, 3)).error is None
    [late] = copy_commands(78, 3, 4, sources[:1], targets[:1], lengths[:1])
    error = child.call(late).error
    assert error is not None
    assert "not mapped" in error
    assert child.call(Command(Kind.UNMAP_EXTENT, 4)).error is None
    num_fds = len(os.listdir(f"/proc/{child.process.pid}/fd"))
    assert num_fds <= 4  # stdio and its socket: nothing that was passed stays open
    child.channel.close()
    assert child.process.wait(10) == 0


def test_one_bad_part_fails_its_whole_job_and_not_the_next(child: Child) -> None:
    pool_fd, _ = memory(8192)
    extent_fd, _ = memory(8192)
    child.call(Command(Kind.MAP_POOL, 1, size_bytes=8192), pool_fd)
    child.call(Command(Kind.MAP_EXTENT, 1, size_bytes=8192, offset_bytes=4096), extent_fd)
    sources = np.zeros(3000, dtype=np.int64)
    sources[0] = 9000
    targets = np.full(3000, 4096, dtype=np.int64)
    lengths = np.ones(3000, dtype=np.int64)
    for command in copy_commands(1, 1, 1, sources, targets, lengths):
        child.send(command)
    answer = child.answer()
    assert answer.number == 1
    assert answer.error is not None
    assert "outside the pool" in answer.error
    for command in copy_commands(2, 1, 1, sources[1:], targets[1:], lengths[1:]):
        child.send(command)
    assert child.answer() == Answer(Kind.COPY, 2, None)
    os.close(pool_fd)
    os.close(extent_fd)


def test_a_map_without_a_descriptor_is_an_error(child: Child) -> None:
    answer = child.call(Command(Kind.MAP_POOL, 1, size_bytes=8192))
    assert answer.error is not None


def test_it_has_numerics_only_and_stays_small(child: Child) -> None:
    maps = Path(f"/proc/{child.process.pid}/maps").read_text(encoding="utf-8")
    assert not [word for word in ("torch", "msgspec", "zmq", "cupy", "cuda") if word in maps]


def test_it_dies_with_its_parent_even_if_its_socket_lives_on() -> None:
    check_it_dies_with_its_parent("server.copier.host")


def test_it_refuses_another_parent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-m", "server.copier.host", str(theirs.fileno()), "1"],
            pass_fds=(theirs.fileno(),),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert done.returncode == 1
    assert "ended before" in done.stderr

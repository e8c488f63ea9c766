"""A stale socket's file goes, a living program's stays, whatever kind it is (B38)."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.shell.socketfile import SocketFile

KINDS = {
    "stream": socket.SOCK_STREAM,
    "datagram": socket.SOCK_DGRAM,
    "packets": socket.SOCK_SEQPACKET,
}


def bound(path: Path, kind: int, listens: bool = True) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if listens and kind != socket.SOCK_DGRAM:
        made.listen()
    return made


def test_where_nothing_is_nothing_happens(short_dir: Path) -> None:
    SocketFile(str(short_dir / "s")).make_way()
    assert list(short_dir.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_b38_a_dead_programs_socket_goes(short_dir: Path, kind: int) -> None:
    bound(short_dir / "s", kind).close()
    SocketFile(str(short_dir / "s")).make_way()
    assert list(short_dir.iterdir()) == []


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_b38_a_living_programs_socket_stays_and_it_notices_nothing(
    short_dir: Path, kind: int, listens: bool
) -> None:
    with bound(short_dir / "s", kind, listens) as theirs:
        theirs.setblocking(False)
        with pytest.raises(ConfigError, match="another program") as caught:
            SocketFile(str(short_dir / "s")).make_way(dying_s=0.05)
        assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
        assert (short_dir / "s").is_socket()
        if listens and kind != socket.SOCK_DGRAM:
            with pytest.raises(BlockingIOError):
                theirs.accept()


def test_b38_a_socket_that_closes_in_time_was_a_dying_predecessors(short_dir: Path) -> None:
    theirs = bound(short_dir / "s", socket.SOCK_STREAM)
    dying = threading.Timer(0.2, theirs.close)
    dying.start()
    begun = time.monotonic()
    SocketFile(str(short_dir / "s")).make_way(dying_s=20)
    assert time.monotonic() - begun < 15
    dying.join()
    assert list(short_dir.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "link"])
def test_b38_what_is_no_socket_is_left_alone(short_dir: Path, kind: str) -> None:
    path = short_dir / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        bound(short_dir / "t", socket.SOCK_STREAM).close()
        path.symlink_to(short_dir / "t")
    with pytest.raises(ConfigError, match="no socket") as caught:
        SocketFile(str(path)).make_way()
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert path.exists() or path.is_symlink()


def test_only_the_file_that_was_bound_is_removed(short_dir: Path) -> None:
    path = short_dir / "s"
    mine = SocketFile(str(path))
    mine.remove()
    with bound(path, socket.SOCK_STREAM):
        assert not mine.is_there()
        mine.remove()
        assert path.exists()  # never said to be ours
        mine.bound()
        assert mine.is_there()
        path.rename(short_dir / "away")
        assert not mine.is_there()
        with bound(path, socket.SOCK_STREAM):  # a successor's
            mine.remove()
            assert path.exists()
        (short_dir / "away").rename(path)
        mine.remove()
        mine.remove()
    assert list(short_dir.iterdir()) == []

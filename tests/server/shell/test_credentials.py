"""The kernel names the peer, and its exit is seen."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, RequestError
from server.shell import credentials
from server.shell.access import Access
from tests.wire.asuser import AsUser, needs_root

SCRIPT = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n"
    "sys.stdin.read()\n"
)


def connect_child(path: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdin=subprocess.PIPE)
        listener.settimeout(15)
        return child, listener.accept()[0]


@pytest.mark.parametrize("way", ["by socket", "by number"])
def test_a_peers_exit_is_seen(short_dir: Path, way: str) -> None:
    child, connection = connect_child(short_dir / "s")
    with connection:
        assert credentials.peer_ids(connection) == (child.pid, os.geteuid())
        if way == "by socket":
            pidfd = credentials.watch_peer(connection, Access.own())
        else:
            pidfd = credentials.open_by_pid(child.pid, connection)
        assert not os.get_inheritable(pidfd)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert not poller.poll(0)
        child.kill()
        assert poller.poll(10_000)
        os.close(pidfd)
    child.communicate()


def test_what_stands_in_for_a_number_is_the_same_for_one_process_only(short_dir: Path) -> None:
    (short_dir / "1").mkdir()
    one, first = connect_child(short_dir / "1" / "s")
    other, second = connect_child(short_dir / "s")
    with first, second:
        mine = credentials.stand_in_of_peer(first)
        if mine == 0:
            pytest.skip("a kernel before 6.9")
        assert mine < 0
        pidfd = os.pidfd_open(one.pid)
        assert credentials.stand_in(pidfd) == credentials.stand_in_of_peer(first) == mine
        os.close(pidfd)
        assert credentials.stand_in_of_peer(second) not in (0, mine)
    for child in (one, other):
        child.communicate()


def test_pidfds_that_all_look_alike_stand_in_for_nobody() -> None:
    # An eventfd lies where an old kernel keeps its pidfds.
    fd = os.eventfd(0)
    assert credentials.stand_in(fd) == 0
    os.close(fd)


def test_a_peer_that_is_gone_already_is_not_watched_by_its_old_number(short_dir: Path) -> None:
    child, connection = connect_child(short_dir / "s")
    child.kill()
    child.communicate()
    with connection:
        # Its number may name another process by now: this one stands for it.
        for pid in (child.pid, os.getpid()):
            with pytest.raises(RequestError) as caught:
                credentials.open_by_pid(pid, connection)
            assert caught.value.code == ErrorCode.UNWATCHABLE_PEER


def test_a_process_of_another_pid_namespace_is_refused_with_the_reason() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(RequestError, match="pid namespace") as caught:
        credentials.open_by_pid(0, ours)
    assert caught.value.code == ErrorCode.UNWATCHABLE_PEER


UID, GID, OTHER = 60_001, 42_042, 42_043


@needs_root
@pytest.mark.parametrize(
    ("gid", "groups", "known"),
    [
        (GID, [], True),
        (OTHER, [GID], True),
        (OTHER, [], True),
        (OTHER, [GID, *range(50_000, 50_100)], True),
        (OTHER, [GID, *range(50_000, 50_300)], False),
    ],
)
def test_the_kernel_names_a_peers_groups(
    short_dir: Path, gid: int, groups: list[int], known: bool
) -> None:
    short_dir.chmod(0o755)

    def connect() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(f"{short_dir}/s")
            client.recv(1)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{short_dir}/s")
        (short_dir / "s").chmod(0o666)  # so that the kernel lets everybody through
        listener.listen()
        child = AsUser(connect, UID, gid, groups)
        connection = listener.accept()[0]
        with connection:
            assert credentials.peer_ids(connection) == (child.pid, UID)
            found = credentials.peer_groups(connection)
            assert found == ({gid, *groups} if known else None)
            with pytest.raises(RequestError, match=f"not user {UID}") as caught:
                credentials.watch_peer(connection, Access.own())
            assert caught.value.code == ErrorCode.NOT_PERMITTED
            shared = Access(os.geteuid(), GID)
            if GID in {gid, *groups}:
                os.close(credentials.watch_peer(connection, shared))
            else:
                with pytest.raises(RequestError, match=f"members of group {GID}, not user {UID}"):
                    credentials.watch_peer(connection, shared)
        child.result()

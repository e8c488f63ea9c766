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
            pidfd = credentials.watch_peer(connection)
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

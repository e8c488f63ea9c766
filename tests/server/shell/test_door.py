"""The listening socket: private, replaced when stale, calm when descriptors run out."""

from __future__ import annotations

import os
import resource
import select
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from protocol import side
from protocol.errors import ConfigError, ErrorCode, RequestError
from server.shell import door
from server.shell.access import Access
from server.shell.complaints import Complaints
from server.shell.door import Door, error_packet
from tests.wire.asuser import AsUser, needs_root


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(10)
    client.connect(str(path))
    return client


def test_it_is_for_its_user_alone_and_replaces_a_stale_one(short_dir: Path) -> None:
    path = short_dir / "s"
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(path))
    stale.close()
    made = Door(str(path), Complaints())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.admit(0) is None
    with connect(path):
        admitted = made.admit(0)
        assert admitted is not None
        connection, pidfd, pid = admitted
        assert made.pids == {pid: 1} == {os.getpid(): 1}
        assert not connection.getblocking()
        connection.close()
        os.close(pidfd)
    made.close()
    assert not path.exists()


@needs_root
def test_with_a_group_its_members_are_admitted_and_others_told_why(short_dir: Path) -> None:
    short_dir.chmod(0o755)
    path, member, other = short_dir / "s", 42_042, 42_043
    made = Door(str(path), Complaints(), Access(os.geteuid(), member))
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, member)

    def knock() -> str:
        with connect(path) as client:
            said = client.recv(4096)  # nothing is ever said to who was let in
            return "" if not said else type(side.unpack_from_server(said)).__name__

    child = AsUser(knock, 60_001, other, [member])
    select.select([made.socket], [], [], 20)
    admitted = made.admit(0)
    assert admitted is not None
    connection, pidfd, _ = admitted
    connection.close()
    os.close(pidfd)
    assert child.result() == ""
    path.chmod(0o666)  # the kernel lets everybody through now
    child = AsUser(knock, 60_001, other)
    select.select([made.socket], [], [], 20)
    assert made.admit(0) is None
    assert child.result() == "SideError"
    made.close()


def test_what_is_no_socket_is_left_alone(short_dir: Path) -> None:
    path = short_dir / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="no socket"):
        Door(str(path), Complaints())
    assert path.read_text() == "data"


def test_one_process_too_many_is_told_why(short_dir: Path) -> None:
    made = Door(str(short_dir / "s"), Complaints())
    with connect(short_dir / "s") as client:
        assert made.admit(door.MAX_PEERS) is None
        answer = side.unpack_from_server(client.recv(4096))
        assert isinstance(answer, side.SideError)
        assert answer.code == ErrorCode.LIMIT_EXCEEDED
        assert client.recv(4096) == b""
    made.close()


def test_one_process_cannot_take_the_places_of_all(short_dir: Path) -> None:
    made = Door(str(short_dir / "s"), Complaints())
    clients: list[socket.socket] = []
    admitted: list[tuple[socket.socket, int, int]] = []
    for _ in range(door.MAX_PER_PROCESS):
        clients.append(connect(short_dir / "s"))
        one = made.admit(len(admitted))
        assert one is not None
        admitted.append(one)
    with connect(short_dir / "s") as client:
        assert made.admit(len(admitted)) is None
        answer = side.unpack_from_server(client.recv(4096))
        assert isinstance(answer, side.SideError)
        assert answer.code == ErrorCode.LIMIT_EXCEEDED
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        "s.settimeout(20); s.connect(sys.argv[1]); print('in', flush=True); s.recv(1)"
    )
    command = [sys.executable, "-c", code, str(short_dir / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        found = made.admit(len(admitted))
        assert found is not None
        assert found[2] == other.pid
        admitted.append(found)
        for connection, pidfd, pid in admitted:
            connection.close()
            os.close(pidfd)
            made.left(pid)
    assert made.pids == {}
    with connect(short_dir / "s"):  # its places are free again
        again = made.admit(0)
        assert again is not None
        again[0].close()
        os.close(again[1])
    for one_client in clients:
        one_client.close()
    made.close()


def test_out_of_descriptors_it_pauses(short_dir: Path) -> None:
    made = Door(str(short_dir / "s"), Complaints())
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connect(short_dir / "s"):
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        held: list[int] = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, old[1]))
            with pytest.raises(OSError, match="open files"):
                held.extend(os.memfd_create("x") for _ in range(highest + 9))
            assert made.admit(0) is None
            assert made.closed_until_ns > 0
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, old)
        admitted = made.admit(0)
        assert admitted is not None
        admitted[0].close()
        os.close(admitted[1])
    made.close()


def test_a_path_that_cannot_be_made_is_a_config_error(short_dir: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        Door(str(short_dir / "missing" / "s"), Complaints())


def test_an_error_packet_fits_whatever_its_text() -> None:
    packet = error_packet(RequestError(ErrorCode.POOL_INVALID, "ü" * 5000), b"p" * 16)
    answer = side.unpack_from_server(packet)
    assert isinstance(answer, side.SideError)
    assert answer.pool == b"p" * 16

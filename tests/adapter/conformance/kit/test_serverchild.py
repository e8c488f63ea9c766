"""A server by command: started, stopped, killed, back at the same place, gone afterwards."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from adapter.conformance.kit.serverchild import ServerError, address_of, commanded

LISTEN = """
import socket, sys, os
path = sys.argv[1]
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
while True:
    taken, _ = server.accept()
    try:
        taken.sendall(str(os.getpid()).encode())
    except OSError:
        pass  # whoever only looked is gone
    taken.close()
"""


def pid_at(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10.0)
        client.connect(str(path))
        return int(client.recv(64))


def test_a_server_is_killed_and_comes_back_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with commanded([sys.executable, "-c", LISTEN, str(path)], f"ipc://{path}") as server:
        first = pid_at(path)
        server.pause()
        server.resume()
        assert pid_at(path) == first
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            pid_at(path)
        server.restart()
        assert pid_at(path) != first
        server.pause()  # a server that is stopped ends, too
    with pytest.raises(ConnectionRefusedError):
        pid_at(path)


@pytest.mark.parametrize(
    ("command", "why"),
    [(["/no/such/program"], "cannot start"), ([sys.executable, "-c", "raise SystemExit(3)"], "3")],
)
def test_a_server_that_does_not_come_up_is_named(
    command: list[str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match=why), commanded(command, f"ipc://{tmp_path}/s"):
        pass


def test_addresses() -> None:
    assert address_of("ipc:///a/b.sock") == "/a/b.sock"
    assert address_of("tcp://127.0.0.1:5555") == ("127.0.0.1", 5555)
    assert address_of("http://localhost:80/x") == ("localhost", 80)
    for wrong in ("nowhere", "tcp://host", "tcp://host:port", ""):
        with pytest.raises(ServerError, match="neither"):
            address_of(wrong)

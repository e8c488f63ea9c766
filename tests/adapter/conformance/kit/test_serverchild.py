"""A server by command: started, stopped, killed, back at the same place, gone afterwards."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from adapter.conformance.kit import serverchild
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


def test_a_server_of_others_is_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serverchild, "_GONE_S", 0.1)
    path, mark = tmp_path / "s", tmp_path / "began"
    with socket.socket(socket.AF_UNIX) as others:
        others.bind(str(path))
        others.listen()
        command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", str(mark)]
        with pytest.raises(ServerError, match="somebody listens"), commanded(command, str(path)):
            pass
    assert not mark.exists()


def test_a_command_that_leaves_its_server_to_itself_is_named(tmp_path: Path) -> None:
    leaves = (
        "import socket, sys, os, time\n"
        "parent = os.getpid()\n"
        "if os.fork(): os._exit(0)\n"
        "while os.getppid() == parent: time.sleep(0.01)\n"
        "server = socket.socket(socket.AF_UNIX)\n"
        "server.bind(sys.argv[1]); server.listen()\n"
        "while os.path.exists(sys.argv[2]): time.sleep(0.02)\n"
    )
    runs = tmp_path / "runs"
    runs.touch()
    command = [sys.executable, "-c", leaves, str(tmp_path / "s"), str(runs)]
    try:
        with (
            pytest.raises(ServerError, match=r"ended with code 0.*has to stay"),
            commanded(command, str(tmp_path / "s")),
        ):
            pass
    finally:
        runs.unlink()


def test_a_server_behind_a_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        serverchild.await_server(f"tcp://127.0.0.1:{port}")
        serverchild.await_server(f"tcp://localhost:{port}")
    with pytest.raises(ServerError, match="nothing listens"):
        serverchild.await_server(f"tcp://127.0.0.1:{port}")


def test_addresses() -> None:
    assert address_of("ipc:///a/b.sock") == "/a/b.sock"
    assert address_of("tcp://127.0.0.1:5555") == ("127.0.0.1", 5555)
    assert address_of("http://localhost:80/x") == ("localhost", 80)
    for wrong in ("nowhere", "tcp://host", "tcp://host:port", ""):
        with pytest.raises(ServerError, match="neither"):
            address_of(wrong)

"""B38: two servers never share an endpoint or an arena; what a dead one left is reclaimed."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from protocol.messages import Done, Ping
from tests.faults.bystander import Bystander, engaged
from tests.faults.starting import launch, places, refused
from tests.wire.client import Engine
from tests.wire.process import ServerProcess, is_alive, wait_until

SIZE = ("--l1-size", "64M")


def serves(server: ServerProcess) -> None:
    """Whether a newcomer is served."""
    with Engine(server.url, server.side_path) as engine:
        engine.wire.call(Ping(), Done)


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mode) for path in folder.iterdir()}


def test_a_second_one_on_the_endpoint_is_refused_and_the_first_unaffected(
    own_server: ServerProcess, short_dir: Path, shm_dir: Path
) -> None:
    bystander = Bystander(own_server)
    before = files_of(short_dir)
    line = refused("--endpoint", own_server.url, "--arena-dir", str(shm_dir / "b"), *SIZE)
    assert "ENDPOINT_IN_USE" in line
    assert f"pid {own_server.pid}" in line
    assert files_of(short_dir).keys() == before.keys()
    assert files_of(short_dir)["s"] == before["s"]
    assert not (shm_dir / "b").exists()
    bystander.check()
    serves(own_server)
    bystander.close()


def test_a_second_one_on_the_arena_is_refused_and_the_first_unaffected(
    own_server: ServerProcess, short_dir: Path
) -> None:
    bystander = Bystander(own_server)
    before = files_of(own_server.arena_dir)
    line = refused(
        *("--endpoint", f"ipc://{short_dir}/other", "--arena-dir", str(own_server.arena_dir), *SIZE)
    )
    assert "ENDPOINT_IN_USE" in line
    assert f"the arena {own_server.arena_dir} is in use by pid {own_server.pid}" in line
    assert files_of(own_server.arena_dir) == before
    assert not list(short_dir.glob("other*"))
    bystander.check()
    serves(own_server)
    bystander.close()


def test_the_same_tcp_port_is_refused(short_dir: Path, shm_dir: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    with ServerProcess(short_dir, shm_dir / "a", *SIZE, url=url, environ=environ) as server:
        for other in (url, url.replace("127.0.0.1", "localhost")):
            arguments = ("--endpoint", other, "--arena-dir", str(shm_dir / "b"), *SIZE)
            assert "ENDPOINT_IN_USE" in refused(*arguments, XDG_RUNTIME_DIR=str(short_dir))
        # From another runtime folder it finds no lock, and the port taken.
        elsewhere = short_dir / "x"
        elsewhere.mkdir()
        arguments = ("--endpoint", url, "--arena-dir", str(shm_dir / "b"), *SIZE)
        assert "ENDPOINT_IN_USE" in refused(*arguments, XDG_RUNTIME_DIR=str(elsewhere))
        serves(server)
        assert list((elsewhere / "kvkeep").iterdir()) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stopped_owner_is_an_owner(
    own_server: ServerProcess, shm_dir: Path, stopped: bool
) -> None:
    if stopped:
        os.kill(own_server.pid, signal.SIGSTOP)
    try:
        arguments = ("--endpoint", own_server.url, "--arena-dir", str(shm_dir / "b"), *SIZE)
        assert "ENDPOINT_IN_USE" in refused(*arguments)
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    serves(own_server)


@pytest.mark.parametrize("rounds", [3])
def test_kill_9_and_a_start_at_once_works_again_and_again(
    short_dir: Path, shm_dir: Path, rounds: int
) -> None:
    for _ in range(rounds):
        with ServerProcess(short_dir, shm_dir / "a", *SIZE) as server:
            assert wait_until(lambda server=server: len(server.children()) == 1)
            serves(server)
            server.process.send_signal(signal.SIGKILL)  # not waited for: it may still be dying
            begun_s = time.monotonic()
            with ServerProcess(short_dir, shm_dir / "a", *SIZE) as successor:
                assert time.monotonic() - begun_s < 20
                serves(successor)
            server.process.wait(15)
    assert [path.name for path in short_dir.iterdir()] == ["server.log"]


@pytest.mark.parametrize("stage", ["s", "s.side"])
def test_another_programs_socket_at_the_path_is_left_alone(
    short_dir: Path, shm_dir: Path, stage: str
) -> None:
    """Such as an endpoint that names /run/docker.sock by mistake."""
    kind = socket.SOCK_STREAM if stage == "s" else socket.SOCK_SEQPACKET
    with socket.socket(socket.AF_UNIX, kind) as theirs:
        theirs.bind(str(short_dir / stage))
        theirs.listen()
        line = refused(*places(short_dir, shm_dir), *SIZE)
        assert "ENDPOINT_IN_USE" in line
        assert f"{short_dir / stage} is the socket of another program" in line
        with socket.socket(socket.AF_UNIX, kind) as client:
            client.connect(str(short_dir / stage))
            theirs.accept()[0].close()
    assert [path.name for path in short_dir.iterdir()] == [stage]
    assert list(shm_dir.iterdir()) == []


STALE = {
    "nothing": True,
    "a dead socket": True,
    "an old lock": True,
    "a lock of garbage": True,
    "a lock naming a living process": True,
    "a file": False,
    "a folder": False,
    "a pipe": False,
    "a dangling link": False,
    "a link to a dead socket": False,
}


def leave(path: Path, kind: str) -> None:
    if kind in ("a dead socket", "a link to a dead socket"):
        target = path if kind == "a dead socket" else path.with_name("far")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(target))
        if target != path:
            path.symlink_to(target)
    elif kind == "a file":
        path.write_text("precious")
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a dangling link":
        path.symlink_to(path.with_name("nowhere"))
    elif kind != "nothing":
        text = {
            "an old lock": b"pid 1999999999, server 00, started 2001",
            "a lock of garbage": b"\xff\x00\n\n" * 100,
            "a lock naming a living process": f"pid {os.getpid()}, server 00".encode(),
        }[kind]
        path.with_name(path.name + ".lock").write_bytes(text)


@pytest.mark.parametrize(("kind", "starts"), STALE.items(), ids=STALE)
def test_what_lies_at_the_endpoint(short_dir: Path, shm_dir: Path, kind: str, starts: bool) -> None:
    leave(short_dir / "s", kind)
    if starts:
        with ServerProcess(short_dir, shm_dir / "s", *SIZE) as server:
            serves(server)
        assert [path.name for path in short_dir.iterdir()] == ["server.log"]
        return
    assert "no socket" in refused(*places(short_dir, shm_dir), *SIZE)
    assert os.path.lexists(short_dir / "s")
    assert list(shm_dir.iterdir()) == []


@pytest.mark.parametrize("kind", ["a file", "a folder", "a pipe", "a dangling link"])
def test_what_lies_at_the_side_sockets_place(short_dir: Path, shm_dir: Path, kind: str) -> None:
    leave(short_dir / "s.side", kind)
    line = refused(*places(short_dir, shm_dir), *SIZE)
    assert "s.side" in line
    assert "no socket" in line
    assert [path.name for path in short_dir.iterdir()] == ["s.side"]


def test_one_that_was_pushed_out_leaves_its_successors_files_alone(
    short_dir: Path, shm_dir: Path
) -> None:
    """Somebody empties the folder of the sockets under a server, and starts another one."""
    with ServerProcess(short_dir, shm_dir / "a", *SIZE) as first, engaged(first) as engine:
        for name in ("s", "s.side", "s.lock"):
            (short_dir / name).unlink()
        with ServerProcess(short_dir, shm_dir / "b", *SIZE) as second:
            serves(second)
            engine.wire.call(Ping(), Done)  # whoever was connected is still served
            assert first.terminate() == 0
            assert {"s", "s.side", "s.lock"} <= {path.name for path in short_dir.iterdir()}
            serves(second)
            assert not is_alive(first.pid)


def test_an_endpoint_whose_folder_cannot_be_made_is_one_line(shm_dir: Path) -> None:
    code, out, err = launch(
        *("--endpoint", "ipc:///proc/kvkeep/s", "--arena-dir", str(shm_dir / "a"), *SIZE)
    )
    assert (code, out) == (2, "")
    assert "cannot be made" in err
    assert err.count("\n") == 1

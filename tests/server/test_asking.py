"""Counters of a live server, and what is said when there is none to ask."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from protocol import side
from protocol.errors import ErrorCode, KvkeepError, ReplyMalformedError, RequestError
from protocol.messages import Ping, StatsReply
from server import asking
from tests.wire.process import ROOT, ServerProcess, wait_until

LIMIT_S = 10.0


def test_a_live_server_answers_and_forgets_who_asked(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        first = asking.stats(server.side_path, LIMIT_S)
        assert first["arena_bytes"] == 64 << 20
        assert (first["processes"], first["connections"]) == (1, 1)
        assert list(first) == sorted(first)
        assert server.log() == ""


def test_who_asked_is_forgotten_with_its_process(short_dir: Path, shm_dir: Path) -> None:
    script = (
        "import sys\n"
        "from server import asking\n"
        "counts = asking.stats(sys.argv[1], 10.0)\n"
        "print(counts['processes'], counts['connections'])\n"
    )
    with ServerProcess(short_dir, shm_dir / "a") as server:

        def counted() -> str:
            command = [sys.executable, "-c", script, server.side_path]
            return subprocess.check_output(command, cwd=ROOT, text=True, timeout=30).strip()

        # The server may hear of the next one before it has seen the last one's end.
        assert [wait_until(lambda: counted() == "1 1") for _ in range(3)] == [True] * 3


def test_nobody_there_is_an_os_error(short_dir: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asking.stats(f"{short_dir}/none.side", LIMIT_S)


def test_files_that_somebody_removed_are_named_instead_of_waited_for(
    short_dir: Path, shm_dir: Path
) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        endpoint = Path(server.url.removeprefix("ipc://"))
        aside = endpoint.with_name("aside")
        endpoint.rename(aside)
        with pytest.raises(asking.EndpointRemovedError, match=f"removed its socket {endpoint}: "):
            asking.stats(server.side_path, LIMIT_S)
        aside.rename(endpoint)
        Path(server.side_path).unlink()
        with pytest.raises(FileNotFoundError) as raised:
            asking.stats(server.side_path, LIMIT_S)
        told = asking.reason(raised.value, server.side_path)
        assert told.startswith(f"somebody removed its socket {server.side_path}: "), told
    assert "no server listens there: " in asking.reason(raised.value, server.side_path)


def answer_once(path: Path, packet: bytes | None, stays: bool = False) -> threading.Thread:
    """Plays a side socket that takes one greeting and says one thing; None hangs up.

    Args:
        path: of the socket.
        packet: what it says.
        stays: whether it is there until the other side has gone.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(1)

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1 << 16)
            if packet is not None:
                connection.send(packet)
            if stays:
                connection.recv(1 << 16)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_refusal_is_passed_on_with_its_code(short_dir: Path) -> None:
    refusal = side.SideError(code=int(ErrorCode.UNWATCHABLE_PEER), message="not from there")
    thread = answer_once(short_dir / "x", side.pack(refusal))
    with pytest.raises(RequestError, match="not from there") as caught:
        asking.stats(f"{short_dir}/x", LIMIT_S)
    assert caught.value.code == ErrorCode.UNWATCHABLE_PEER
    thread.join()


def test_a_listener_that_hangs_up_or_talks_nonsense_is_told_from_a_server(short_dir: Path) -> None:
    thread = answer_once(short_dir / "x", None)
    with pytest.raises(ConnectionResetError):
        asking.stats(f"{short_dir}/x", LIMIT_S)
    thread.join()
    thread = answer_once(short_dir / "y", b"\xc1")
    with pytest.raises(KvkeepError):
        asking.stats(f"{short_dir}/y", LIMIT_S)
    thread.join()


def test_a_server_that_never_answers_costs_the_limit(short_dir: Path) -> None:
    welcome = side.Welcome(
        token=bytes(16), epoch=bytes(16), arena=bytes(16), endpoint=f"ipc://{short_dir}/nobody"
    )
    thread = answer_once(short_dir / "x", side.pack(welcome), stays=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short_dir}/nobody")
        listener.listen()
        with pytest.raises(TimeoutError):
            asking.stats(f"{short_dir}/x", 0.2)
    thread.join()


def test_a_server_that_ends_is_not_waited_for(short_dir: Path, shm_dir: Path) -> None:
    with (
        ServerProcess(short_dir, shm_dir / "a") as server,
        asking.connected(server.side_path, LIMIT_S, "test") as asker,
    ):
        os.kill(server.pid, signal.SIGSTOP)
        threading.Timer(0.2, server.process.kill).start()
        begun_s = time.monotonic()
        with pytest.raises(ConnectionResetError, match="the server ended"):
            asker.stats(60.0)
        assert time.monotonic() - begun_s < 20


def test_status_is_asked_for_and_another_answer_is_refused(short_dir: Path, shm_dir: Path) -> None:
    with (
        ServerProcess(short_dir, shm_dir / "a") as server,
        asking.connected(server.side_path, LIMIT_S, "test") as asker,
    ):
        assert asker.status(LIMIT_S).server.pid == server.pid
        assert list(asker.stats(LIMIT_S)) == sorted(asker.stats(LIMIT_S))
        with pytest.raises(ReplyMalformedError, match="Done came, StatsReply was awaited"):
            asker.expect(Ping(), StatsReply, LIMIT_S)

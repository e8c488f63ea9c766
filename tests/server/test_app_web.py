"""``--http``: pages beside a real server, which serves on whatever happens to them."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

from server import asking
from tests.wire.client import Engine
from tests.wire.ports import held_port
from tests.wire.process import ServerProcess, is_alive, wait_until


def page(port: int, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.status, answer.read().decode()


def answers(port: int) -> bool:
    try:
        return page(port, "/healthz")[0] == 200
    except OSError:
        return False


def test_pages_come_back_and_end_with_the_server(short_dir: Path, shm_dir: Path) -> None:
    with (
        held_port() as port,
        ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M", "--http", str(port)) as server,
    ):
        assert wait_until(lambda: answers(port), 30)
        assert server.process.stdout is not None
        line = server.process.stdout.readline().decode()
        assert line == f"kvkeep pages: http://127.0.0.1:{port}/\n", "whatever the log level is"
        with asking.connected(server.side_path, 10, "tests") as asker:
            assert asker.status(10).server.http == f"http://127.0.0.1:{port}/"
        first = asking.stats(server.side_path, 10)["web_pid"]
        assert first in server.children()
        assert re.search(r"^kvkeep_requests_total [0-9.e+]+$", page(port, "/metrics")[1], re.M)
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: asking.stats(server.side_path, 10)["web_restarts"] == 1, 30)
        assert wait_until(lambda: answers(port), 30)
        second = asking.stats(server.side_path, 10)["web_pid"]
        assert server.terminate() == 0
        assert not is_alive(second)
        assert "complaint" not in server.log()
        assert "web_lost" in server.log()


def test_a_killed_server_leaves_no_pages(short_dir: Path, shm_dir: Path) -> None:
    with (
        held_port() as port,
        ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M", "--http", str(port)) as server,
    ):
        assert wait_until(lambda: answers(port), 30)
        pid = asking.stats(server.side_path, 10)["web_pid"]
        server.kill()
        assert wait_until(lambda: not is_alive(pid))


def test_a_port_that_is_taken_is_said_and_the_server_serves(short_dir: Path, shm_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ("--l1-size", "64M", "--http", f"127.0.0.1:{port}")
        with (
            ServerProcess(short_dir, shm_dir / "a", *arguments) as server,
            Engine(server.url, server.side_path) as engine,
        ):
            assert wait_until(lambda: "web_refused" in server.log(), 30)
            engine.register()
            assert server.log().count("web_refused") == 1
            assert f"no pages at 127.0.0.1:{port}" in server.log()

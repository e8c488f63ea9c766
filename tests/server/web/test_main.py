"""The web process beside a real server: it starts, answers, sees it freeze and go, and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.heartbeat import BEAT
from server.web.main import EXIT_CANNOT_LISTEN, THREADS
from tests.server.web.pageserver import Pages, serving
from tests.wire.process import ROOT, ServerProcess, wait_until

COMMAND = [sys.executable, "-m", "server.web"]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[ServerProcess, Pages]]:
    """A server and its pages, for tests that leave both as they found them."""
    with (
        tempfile.TemporaryDirectory(prefix="kvk-") as short,
        tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as arena,
        ServerProcess(Path(short), Path(arena) / "a") as server,
        serving(server.side_path) as (pages, _),
    ):
        yield server, pages


def is_well(pages: Pages) -> bool:
    """Whether the server is said to live, soon: a busy machine may have one answer late."""
    return wait_until(lambda: pages.get("/healthz")[0] == 200, 20, every_s=0.2)


def test_it_answers_for_a_server_that_is_well(shared: tuple[ServerProcess, Pages]) -> None:
    _, served = shared
    assert is_well(served)
    assert wait_until(lambda: served.get("/readyz")[0] == 200, 10, every_s=0.2)
    assert served.get("/", method="POST")[0] == 405
    assert served.get("/", {"Host": "evil.example"})[0] == 403
    assert served.metrics()["kvkeep_up"] == 1
    status = served.json("/api/status")
    assert status["answers"] is True
    web = [row for row in status["status"]["engines"] if row["client"].startswith("kvkeep web ")]
    assert [row["state"] for row in web] == ["operator"]


def test_a_frozen_loop_is_seen_in_time_and_so_is_its_return(
    shared: tuple[ServerProcess, Pages],
) -> None:
    server, served = shared
    assert is_well(served)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        time.sleep(1.1)  # what was told before is a second old then
        begun_s = time.monotonic()
        assert served.get("/healthz")[0] == 503
        assert time.monotonic() - begun_s < 8.0
        assert served.get("/readyz")[0] == 503
        assert b"kvkeep_up 0.0" in served.get("/metrics")[1]
        assert "answer" in served.json("/api/status")["why"]
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert is_well(served)


def test_a_server_that_ended_is_named_and_its_successor_found(
    server: ServerProcess, short_dir: Path
) -> None:
    with serving(server.side_path) as (served, _):
        assert is_well(served)
        epoch = served.json("/api/status")["status"]["server"]["epoch"]
        server.terminate()
        assert wait_until(lambda: served.get("/healthz")[0] == 503, 10, every_s=0.2)
        with ServerProcess(short_dir, server.arena_dir):
            assert is_well(served)
            assert served.json("/api/status")["status"]["server"]["epoch"] != epoch


def test_without_any_server_it_serves_and_says_so(short_dir: Path) -> None:
    with serving(str(short_dir / "none")) as (pages, process):
        code, content = pages.get("/healthz")
        assert code == 503
        assert b"does not exist" in content
        assert pages.get("/")[0] == 200
        process.terminate()
        assert process.wait(5) == 0


def test_a_port_that_is_taken_is_one_clear_line(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--side", str(short_dir / "none"), "--listen", str(port)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == EXIT_CANNOT_LISTEN
    who = f"ss -ltnp 'sport = :{port}' names who has it"
    assert done.stderr == f"kvkeep: no pages at 127.0.0.1:{port}: Address already in use: {who}\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--listen", "x"], "a port is a number"), ([], "--listen")]
)
def test_wrong_options_are_named(arguments: list[str], word: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--side", "/none", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert word in done.stderr


def test_a_few_who_never_end_their_request_leave_places_and_many_scrapes_the_loop_idle(
    shared: tuple[ServerProcess, Pages],
) -> None:
    _, served = shared
    # Twice as many as there are threads; who takes all connections does keep others out.
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2 * THREADS)]
    try:
        for connection in idle:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        assert is_well(served)
        before = served.json("/api/status")["stats"]["requests"]
        begun_s = time.monotonic()
        for _ in range(200):
            assert served.get("/metrics")[0] == 200
        passed_s = time.monotonic() - begun_s
        time.sleep(1.1)
        after = served.json("/api/status")["stats"]["requests"]
        # Three requests a question: STATUS, QUOTAS, STATS; some begin while this counts.
        assert after - before <= 3 * (passed_s + 3)
    finally:
        for connection in idle:
            connection.close()


def test_it_ends_with_the_process_that_started_it(
    shared: tuple[ServerProcess, Pages],
) -> None:
    side_path = shared[0].side_path
    code = (
        "import subprocess, sys, os\n"
        "child = subprocess.Popen([sys.executable, '-m', 'server.web', '--side', sys.argv[1],\n"
        "    '--listen', '127.0.0.1:0', '--parent', str(os.getpid())], stdout=subprocess.PIPE)\n"
        "print(child.pid, child.stdout.readline().decode().strip(), flush=True)\n"
        "print(child.stdout.readline().decode().strip(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, side_path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid, _, line = parent.stdout.readline().decode().partition(" ")
        pages = Pages(line.removeprefix("kvkeep pages: ").strip())
        assert is_well(pages)
        assert parent.stdout.readline().decode().strip() == BEAT, "it says that its loop turns"
        parent.kill()

    def is_gone() -> bool:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        except OSError:
            return True
        return text.rpartition(")")[2].split()[0] == "Z"

    assert wait_until(is_gone, 5)

"""A private server lives exactly as long as the engine that started it, and leaves nothing."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter import embedded
from adapter.embedded import (
    Place,
    PrivateServer,
    check_settings,
    place_for,
    server_environ,
    sweep,
    sweep_arenas,
)
from adapter.journal import Journal
from protocol import endpoint
from protocol.errors import ConfigError, ErrorCode
from tests.adapter.linking import joined_link
from tests.adapter.responder import until

ENVIRON = {**os.environ, f"{embedded.SETTINGS_PREFIX}L1_SIZE": "16M"}
JOURNAL = Journal(logging.getLogger("kvkeep.test"))
SERVERS: list[PrivateServer] = []


def private(place: Place, journal: Journal = JOURNAL, **environ: str) -> PrivateServer:
    """A server that ends with the test whatever happens."""
    SERVERS.append(PrivateServer(place, journal, ENVIRON | environ))
    return SERVERS[-1]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> Iterator[Place]:
    monkeypatch.setattr("tempfile.tempdir", str(short_dir))
    found = place_for(False, 0)
    yield found
    for server in SERVERS:
        server.close(5)
    SERVERS.clear()
    assert not os.path.exists(found.arena)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def serving(server: PrivateServer, place: Place) -> int:
    until(lambda: os.path.exists(place.url.removeprefix("ipc://")), 30)
    pid = server.pid
    assert pid is not None
    return pid


def test_an_engine_is_served_and_nothing_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = private(place)
    begin_s = time.thread_time()
    server.start()
    assert time.thread_time() - begin_s < 0.05
    with joined_link(place.url):
        pid = serving(server, place)
        assert os.stat(place.folder).st_mode & 0o777 == 0o700
        assert os.path.isdir(place.arena)
        assert os.getsid(pid) == pid, "a Ctrl-C at the engine's terminal is the engine's to act on"
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: 1)  # a fork of the engine ends; the server is not its own
        server.close(5)
        assert server.pid == pid
        assert os.path.exists(place.folder)
    server.close(60)  # it ends by itself, far earlier
    assert is_gone(pid)
    assert server._child is not None
    assert server._child.returncode == 0, "it was asked, not killed"
    assert not os.path.exists(place.folder)
    server.close(5)


def test_the_servers_settings_are_heard(place: Place) -> None:
    # 16 MiB of extents of 1 MiB: told by the length of the first one.
    server = private(place, KVKEEP_EXTENT_SIZE="1M", KVKEEP_ENDPOINT="not to be heard")
    server.start()
    with joined_link(place.url):
        extents = [path for path in Path(place.arena).iterdir() if path.stat().st_size > 4096]
        assert extents
        assert all(900_000 < path.stat().st_size <= 1 << 20 for path in extents)
    server.close(5)


def test_an_arena_that_was_asked_for_is_not_overruled(place: Place) -> None:
    assert "--arena-dir" in private(place)._arguments()
    assert "--arena-dir" not in private(place, KVKEEP_ARENA_DIR="/dev/shm/own")._arguments()
    told = private(place, TRTLLM_KVKEEP_INPROC_ARENA_DIR="/dev/shm/own")
    assert "--arena-dir" not in told._arguments()


def test_a_server_that_ends_is_started_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PAUSE_FIRST_S", 0.05)
    journal = Journal(logging.getLogger("kvkeep.test"))
    server = private(place, journal)
    server.start()
    first = serving(server, place)
    os.kill(first, signal.SIGKILL)
    until(lambda: server.pid not in (None, first), 30)
    with joined_link(place.url):
        assert journal.counters()["inproc_exits"] == 1
    server.close(5)


def test_a_server_that_does_not_end_is_killed(place: Place) -> None:
    server = private(place)
    server.start()
    pid = serving(server, place)
    os.kill(pid, signal.SIGSTOP)
    begin_s = time.monotonic()
    server.close(0.3)
    assert time.monotonic() - begin_s < 5
    assert is_gone(pid)
    assert not os.path.exists(place.folder)


def test_closing_at_once_starts_nothing(place: Place) -> None:
    server = private(place)
    server.close(5)
    server.start()
    server.close(5)
    assert server.pid is None


def test_closing_while_it_is_about_to_start_starts_nothing(place: Place) -> None:
    server = private(place)
    with server._lock:
        server.start()
        until(lambda: os.path.exists(place.folder), 30)
        server._closing.set()
    server._thread.join(30)
    assert not server._thread.is_alive()
    assert server._child is None
    server.close(5)
    assert not os.path.exists(place.folder)


ENGINE = """
import logging, os, sys, time
from adapter.embedded import Place, PrivateServer
from adapter.journal import Journal
server = PrivateServer(
    Place(sys.argv[1], sys.argv[2], True), Journal(logging.getLogger()), os.environ
)
server.start()
while server.pid is None:
    time.sleep(0.01)
print(server.pid, flush=True)
time.sleep(600)
"""


def test_killed_with_its_engine(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, place.folder, place.arena],
        stdout=subprocess.PIPE,
        env=server_environ(ENVIRON),
    )
    try:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        until(lambda: os.path.exists(place.url.removeprefix("ipc://")), 30)
    finally:
        engine.kill()
        engine.wait()
        if engine.stdout is not None:
            engine.stdout.close()
    until(lambda: is_gone(pid), 15)
    until(lambda: not os.path.exists(place.arena), 15)
    assert sweep(Path(place.folder).parent, min_age_s=0) == 0, "it is named after this process"
    # The empty folder goes with the next private server's start.
    monkeypatch.setattr(embedded, "_identity_of", lambda pid: f"{pid}-0")
    assert sweep(Path(place.folder).parent, min_age_s=0) == 1
    assert not os.path.exists(place.folder)


def test_a_child_whose_engine_is_gone_ends_at_once() -> None:
    with pytest.raises(SystemExit, match="ended before"):
        run_main_in_a_child("1")


def run_main_in_a_child(parent_pid: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "adapter.embedded", parent_pid, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=server_environ(os.environ),
    )
    if result.returncode:
        raise SystemExit(result.stderr)


def test_it_does_not_speak_for_an_engine_that_is_a_service() -> None:
    """An engine under systemd that starts a server must not be called ready by that server."""
    of_a_service = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}
    assert of_a_service.keys().isdisjoint(server_environ({**ENVIRON, **of_a_service}))


def test_sweeping_spares_the_living_and_the_young(place: Place, short_dir: Path) -> None:
    server = private(place)
    server.start()
    serving(server, place)
    dead = Path(f"{short_dir}/kvkeep-inproc-{os.geteuid()}-1-2-dead")
    dead.mkdir()
    (dead / "s.lock").touch()
    assert sweep(short_dir) == 0
    assert sweep(short_dir, min_age_s=0) == 1
    assert not dead.exists()
    assert os.path.exists(place.url.removeprefix("ipc://"))
    server.close(5)


def test_extents_of_the_dead_go_without_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid, me = os.geteuid(), place_for(False, 0).folder.partition(f"-{os.geteuid()}-")[2]
    dead, of_ranks = f"kvkeep-inproc-{uid}-1-2-00c0ffee", f"kvkeep-inproc-{uid}-p1-2"
    locked = f"kvkeep-inproc-{uid}-1-3-00c0ffee"
    spared = (locked, f"kvkeep-inproc-{uid}-{me}", f"kvkeep-inproc-{uid}-odd", "kvkeep-inproc-1-2")
    for name in (dead, of_ranks, *spared):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    link = tmp_path / f"kvkeep-inproc-{uid}-1-4-00c0ffee"
    link.symlink_to(tmp_path / locked)
    with (tmp_path / locked / "lock").open("w") as server:
        fcntl.flock(server, fcntl.LOCK_EX)  # in another container its engine seems to be gone
        assert sweep_arenas(tmp_path, min_age_s=3600) == 0
        with monkeypatch.context() as other:
            other.setattr("os.geteuid", lambda: uid + 1)
            assert sweep_arenas(tmp_path, min_age_s=0) == 0
        assert sweep_arenas(tmp_path, min_age_s=0) == 2
    assert {path.name for path in tmp_path.iterdir()} == {link.name, *spared}


def wrong(**environ: str) -> str:
    with pytest.raises(ConfigError) as raised:
        check_settings({"PATH": os.environ["PATH"], **environ})
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    return raised.value.message


def test_a_wrong_setting_is_named_as_it_was_written() -> None:
    name = "TRTLLM_KVKEEP_INPROC_L1_SIZE"
    assert wrong(**{name: "abc"}).startswith(f"{name}: l1-size='abc': expected")
    assert wrong(KVKEEP_L1_SIZE="abc").startswith("KVKEEP_L1_SIZE: ")
    assert wrong(TRTLLM_KVKEEP_INPROC_L1SIZE="1G") == (
        "TRTLLM_KVKEEP_INPROC_L1SIZE in the environment is no setting of the server: "
        f"did you mean {name}?"
    )
    check_settings({name: "64M"})


def test_a_size_beyond_the_machine_is_told_with_the_name_of_the_variable(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    name = "TRTLLM_KVKEEP_INPROC_L1_SIZE"
    server = private(
        place,
        TRTLLM_KVKEEP_INPROC_L1_SIZE="15T",
        TRTLLM_KVKEEP_INPROC_VALKEY_PASSWORD="sesame",
    )
    server.start()
    until(lambda: "the private server ended with code 2" in caplog.text, 60)
    [line] = [one for one in caplog.text.splitlines() if "ended with code" in one]
    assert name in line
    assert "sesame" not in line
    assert "runs uncached" in line
    server.close(5)


def test_sweeping_spares_what_another_user_named_like_ours(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(f"{short_dir}/kvkeep-inproc-4711-1-2-dead")
    folder.mkdir()
    monkeypatch.setattr("os.geteuid", lambda: 4711)  # the folder is somebody else's then
    assert sweep(short_dir, min_age_s=0) == 0
    assert folder.exists()


def test_places(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_dir))
    first, second = place_for(False, 0), place_for(False, 0)
    assert first.folder != second.folder
    assert first.is_ours
    born = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    assert f"-{os.getpid()}-{born}-" in first.folder, "no later process takes it for its own"
    # Ranks of attention data parallelism were started by one process and meet without a word.
    leader, other = place_for(True, 0), place_for(True, 1)
    assert leader.url == other.url
    assert (leader.is_ours, other.is_ours) == (True, False)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("os.getpid", lambda: 1)  # each of them is a process of its own
        assert place_for(True, 1) == other
        elsewhere.setattr("os.getppid", lambda: 1)
        assert place_for(True, 1).url != other.url
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 90)
    assert place_for(False, 0).folder.startswith("/tmp/")
    for place in (first, leader, place_for(True, 3)):
        assert endpoint.parse(place.url).url == place.url


def test_the_environment_of_the_child() -> None:
    found = server_environ(
        {"TRTLLM_KVKEEP_INPROC_L1_SIZE": "1G", "KVKEEP_ENDPOINT": "x", "PYTHONPATH": "/a", "B": "c"}
    )
    assert found["KVKEEP_L1_SIZE"] == "1G"
    assert "KVKEEP_ENDPOINT" not in found
    home, other = found["PYTHONPATH"].split(os.pathsep)
    assert (Path(home) / "protocol").is_dir()
    assert (other, found["B"]) == ("/a", "c")

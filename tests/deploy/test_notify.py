"""The server under a service manager: when it is ready, how long it may start, when it hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol import side
from protocol.messages import Ping
from tests.deploy.manager import Manager
from tests.wire.client import Engine, SideClient
from tests.wire.process import ROOT, ServerProcess

KEEP = ("--l1-size", "64M", "--arena-at-exit", "keep")


@contextmanager
def slow_server(folder: Path, arena: Path, manager: Manager, *how: str) -> Iterator[int]:
    """A server of ``slowstart``; its process id."""
    command = [sys.executable, "-m", "tests.deploy.slowstart", *how]
    command += ["--endpoint", f"ipc://{folder}/s", "--arena-dir", str(arena), "--l1-size", "64M"]
    with subprocess.Popen(
        [*command, "--arena-at-exit", "remove"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **manager.environ()},
    ) as process:
        try:
            manager.begin(process.pid)
            yield process.pid
        finally:
            process.kill()


def test_ready_means_that_engines_can_connect(short_dir: Path, shm_dir: Path) -> None:
    """120 s of page-locking, scaled down: the start is extended, and READY waits for its end."""
    with (
        Manager(str(short_dir / "n"), start_s=30) as manager,
        slow_server(short_dir, shm_dir / "a", manager, "steps", "4", "0.4", "4") as pid,
    ):
        manager.wait_for("STATUS", "pinning 1 of 4")
        manager.hurry(1.0)  # without the next extensions it would be ended before the last step
        manager.wait_for("STATUS", "pinning 4 of 4")
        assert manager.ready_at_s is None
        manager.wait_for("READY")
        with Engine(f"ipc://{short_dir}/s", f"{short_dir}/s.side") as engine:
            assert engine.hello.epoch == engine.welcome.epoch
    said = [told.values for told in manager.told]
    assert all(told.pid == pid for told in manager.told)
    assert ["READY" in values for values in said].index(True) == len(said) - 1
    assert all("EXTEND_TIMEOUT_USEC" in values for values in said[:-1])
    assert said[-1]["STATUS"] == f"serving 64 MiB at ipc://{short_dir}/s"


@pytest.mark.slow
def test_two_minutes_of_page_locking_are_a_start_that_is_extended(
    short_dir: Path, shm_dir: Path
) -> None:
    """The same at full length: 24 steps of 5 s, and a manager that gives a start 30 s."""
    begun_s = time.monotonic()
    with (
        Manager(str(short_dir / "n"), start_s=30) as manager,
        slow_server(short_dir, shm_dir / "a", manager, "steps", "24", "5", "10"),
    ):
        manager.wait_for("STATUS", "pinning 24 of 24", limit_s=180)
        assert manager.ready_at_s is None
        assert manager.wait_for("READY").at_s - begun_s >= 120
        with Engine(f"ipc://{short_dir}/s", f"{short_dir}/s.side") as engine:
            assert engine.hello.epoch == engine.welcome.epoch


def test_a_loop_that_stands_still_is_noticed_though_the_rest_of_the_server_lives(
    short_dir: Path, shm_dir: Path
) -> None:
    """A sign of life from any other thread would hide it."""
    with (
        Manager(str(short_dir / "n"), watchdog_s=3.0) as manager,
        slow_server(short_dir, shm_dir / "a", manager, "loop", "0", "0", "0"),
    ):
        manager.wait_for("READY")
        manager.wait_for("WATCHDOG")
        with Engine(f"ipc://{short_dir}/s", f"{short_dir}/s.side") as engine:
            engine.wire.submit(Ping())
            assert manager.watch(10) == "watchdog"
            other = SideClient(f"{short_dir}/s.side")
            try:
                assert isinstance(other.hello(os.urandom(16)), side.Welcome)
            finally:
                other.close()


def test_a_start_that_hangs_is_not_extended_for_ever(short_dir: Path, shm_dir: Path) -> None:
    with (
        Manager(str(short_dir / "n"), start_s=30) as manager,
        slow_server(short_dir, shm_dir / "a", manager, "hang", "1", "0", "0.5"),
    ):
        manager.wait_for("STATUS", "pinning 1 of 1")
        manager.hurry(0.5)
        assert manager.watch(10) == "timeout"
        assert manager.ready_at_s is None


def test_a_frozen_loop_is_noticed_and_the_next_server_has_the_cache(
    short_dir: Path, shm_dir: Path
) -> None:
    keys = [os.urandom(16) for _ in range(4)]
    with Manager(f"@{short_dir}/n", watchdog_s=3.0) as manager:
        environ = manager.environ()
        with ServerProcess(short_dir, shm_dir / "a", *KEEP, environ=environ) as server:
            manager.begin(server.pid)
            manager.wait_for("READY")
            with Engine(server.url, server.side_path) as engine:
                engine.register()
                assert engine.save(keys, [0, 1, 2, 3]) == 4
            for child in server.children():  # nobody else can speak for the loop
                assert b"NOTIFY_SOCKET" not in Path(f"/proc/{child}/environ").read_bytes()
            manager.wait_for("WATCHDOG")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                assert manager.watch(10) == "watchdog"
            finally:
                server.kill()  # as the manager does
        with ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M", environ=environ) as server:
            assert "adopted 4 chunks" in server.line
            manager.begin(server.pid)
            manager.wait_for("READY")
            with Engine(server.url, server.side_path) as engine:
                engine.register()
                assert engine.lookup(keys).ready
            assert server.terminate() == 0
            manager.wait_for("STOPPING")
    assert manager.status == "ending"

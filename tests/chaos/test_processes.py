"""A grip signals the process it took hold of; what ``/proc`` tells is read as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import (
    Grip,
    children_of,
    descriptors_of,
    module_of,
    rss_anon_bytes,
    state_of,
)
from tests.wire.process import wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_grip_stops_continues_and_kills(sleeper: subprocess.Popen[bytes]) -> None:
    grip = Grip(sleeper.pid)
    assert grip.is_alive
    assert grip.signal(signal.SIGSTOP)
    assert wait_until(lambda: state_of(sleeper.pid) == "T")
    assert grip.signal(signal.SIGCONT)
    assert wait_until(lambda: state_of(sleeper.pid) in "RS")
    assert not grip.wait_gone(0.05)
    assert grip.signal(signal.SIGKILL)
    assert grip.wait_gone(10)
    sleeper.wait()
    assert not grip.signal(signal.SIGKILL)
    grip.close()
    grip.close()
    assert (state_of(sleeper.pid), rss_anon_bytes(sleeper.pid)) == ("", 0)
    with pytest.raises(ProcessLookupError):
        Grip(sleeper.pid)


def test_children_and_memory(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in children_of(os.getpid())
    assert children_of(sleeper.pid) == []
    assert wait_until(lambda: rss_anon_bytes(sleeper.pid) > 1 << 20)


def test_a_module_that_runs_is_named(sleeper: subprocess.Popen[bytes]) -> None:
    assert wait_until(lambda: module_of(sleeper.pid) == "")
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        assert wait_until(lambda: module_of(child.pid) == "http.server")
        child.kill()
    assert module_of(child.pid) == ""


def test_a_descriptor_of_a_dead_process_is_told_apart(sleeper: subprocess.Popen[bytes]) -> None:
    before = descriptors_of(os.getpid(), "none").get("[pidfd] of the dead", 0)
    fd = os.pidfd_open(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert descriptors_of(os.getpid(), "none")["[pidfd] of the dead"] == before + 1
    os.close(fd)


def test_descriptors_by_kind(tmp_path: Path) -> None:
    before = descriptors_of(os.getpid(), str(tmp_path / "arena"))
    (tmp_path / "arena").mkdir()
    opened = [os.memfd_create("x"), os.pidfd_open(os.getpid())]
    with open(tmp_path / "arena" / "extent", "wb"):
        now = descriptors_of(os.getpid(), str(tmp_path / "arena"))
    for fd in opened:
        os.close(fd)
    assert now.get("memfd", 0) == before.get("memfd", 0) + 1
    more = {kind: count - before.get(kind, 0) for kind, count in now.items()}
    assert [count for kind, count in more.items() if count and "[pidfd] of " in kind] == [1]
    assert sum(now.values()) == sum(before.values()) + 2

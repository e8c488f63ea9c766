"""The service manager of these tests keeps systemd's rules, on which what they show depends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.manager import Manager


def say(manager: Manager, text: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        name = manager.address
        made.sendto(text.encode(), f"\0{name[1:]}" if name.startswith("@") else name)


@pytest.fixture
def path(short_dir: Path) -> str:
    return str(short_dir / "n")


def test_a_start_that_says_nothing_is_ended(path: str) -> None:
    with Manager(path, start_s=0.05) as manager:
        assert manager.watch(5) == "timeout"
    assert not os.path.exists(path)


def test_an_extension_counts_from_when_it_came(path: str) -> None:
    with Manager(path, start_s=0.05) as manager:
        say(manager, "EXTEND_TIMEOUT_USEC=300000\nSTATUS=at it")
        assert manager.watch(0.15) == ""
        assert manager.status == "at it"
        assert manager.watch(5) == "timeout"


def test_an_extension_never_shortens(path: str) -> None:
    with Manager(path, start_s=0.3) as manager:
        say(manager, "EXTEND_TIMEOUT_USEC=1000")
        assert manager.watch(0.15) == ""


def test_the_watchdog_counts_from_ready_on(path: str) -> None:
    with Manager(path, start_s=5, watchdog_s=0.1) as manager:
        assert manager.watch(0.15) == ""
        say(manager, "READY=1")
        assert manager.watch(5, until_ready=True) == ""
        say(manager, "WATCHDOG=1")
        assert manager.watch(5) == "watchdog"


def test_a_service_that_ends_needs_no_sign_of_life(path: str) -> None:
    with Manager(path, watchdog_s=0.05) as manager:
        say(manager, "READY=1")
        say(manager, "STOPPING=1")
        assert manager.watch(0.15) == ""


def test_only_the_main_process_is_believed(path: str) -> None:
    with Manager(f"@{path}", start_s=5) as manager:
        manager.begin(os.getpid())
        code = (
            "import socket\nwith socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:\n"
            f"    one.sendto(b'READY=1', chr(0) + {path!r})"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
        assert manager.watch(0.05) == ""
        assert len(manager.told) == 1
        assert manager.ready_at_s is None
        say(manager, "READY=1")
        assert manager.watch(5, until_ready=True) == ""
        assert manager.ready_at_s is not None

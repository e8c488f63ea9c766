"""Notifications under a real socket: what is sent, when, and what a deaf manager costs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.shell import sdnotify
from server.shell.sdnotify import Notifier


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def __call__(self) -> int:
        return self.ns


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, short_dir: Path) -> str:
    return str(short_dir / "n") if request.param == "path" else f"@kvkeep-test-{os.getpid()}"


@pytest.fixture
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        made.settimeout(5)
        yield made


def heard(manager: socket.socket) -> list[str]:
    """The lines of one datagram."""
    return manager.recv(4096).decode().split("\n")


def silent(manager: socket.socket) -> bool:
    manager.setblocking(False)
    try:
        manager.recv(4096)
    except BlockingIOError:
        return True
    finally:
        manager.settimeout(5)
    return False


def test_a_start_and_an_end_are_told_in_order(address: str, manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "LANG": "C"}
    notifier = Notifier.from_environ(environ, os.getpid())
    assert environ == {"LANG": "C"}  # no child can speak for the server
    notifier.stage("looking around")
    notifier.stage("taking over", slots=1_000_000)
    notifier.ready("serving\n20 GiB  here")
    notifier.alive()
    notifier.stopping()
    assert heard(manager) == ["EXTEND_TIMEOUT_USEC=30000000", "STATUS=looking around"]
    assert heard(manager) == ["EXTEND_TIMEOUT_USEC=130000000", "STATUS=taking over"]
    assert heard(manager) == ["READY=1", "STATUS=serving 20 GiB here"]
    assert heard(manager) == ["WATCHDOG=1"]
    assert heard(manager) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000", "STATUS=ending"]
    assert silent(manager)
    assert notifier.num_lost == 0


def test_signs_of_life_come_three_times_a_period(address: str, manager: socket.socket) -> None:
    clock = Clock()
    notifier = Notifier(address, 9_000_000, clock)
    count = 0
    for _ in range(90):  # a turn each 100 ms
        notifier.alive()
        count += not silent(manager)
        clock.ns += 100_000_000
    assert count == 3


def test_without_a_watchdog_there_are_no_signs(address: str, manager: socket.socket) -> None:
    notifier = Notifier(address, 0)
    notifier.alive()
    assert silent(manager)


def test_without_a_manager_nothing_is_done() -> None:
    notifier = Notifier.from_environ({}, 1)
    notifier.stage("a stage")
    notifier.ready("ready")
    notifier.alive()
    notifier.stopping()
    assert notifier.num_lost == 0


@pytest.mark.parametrize(
    ("period", "whose", "is_kept"),
    [
        ("30000000", "", True),
        ("30000000", "77", True),
        ("30000000", "78", False),  # of another process: of a shell around the server, say
        ("", "77", False),
        ("-1", "77", False),
        ("soon", "77", False),
        ("9" * 400, "77", True),
    ],
)
def test_the_watchdog_is_the_one_of_this_process(
    short_dir: Path, period: str, whose: str, is_kept: bool
) -> None:
    environ = {
        "NOTIFY_SOCKET": str(short_dir / "n"),
        "WATCHDOG_USEC": period,
        "WATCHDOG_PID": whose,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(short_dir / "n"))
        Notifier.from_environ(environ, 77).alive()
        assert silent(manager) is not is_kept


def test_a_period_that_cannot_be_kept_is_said(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"NOTIFY_SOCKET": str(short_dir / "n"), "WATCHDOG_USEC": "2999999"}
    Notifier.from_environ(environ, 1)
    assert "WatchdogSec is 3.000 s" in caplog.text
    caplog.clear()
    Notifier.from_environ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3000000"}, 1)
    assert caplog.text == ""


def test_a_manager_that_does_not_read_holds_nobody_up(address: str, manager: socket.socket) -> None:
    notifier = Notifier(address, 30_000_000)
    begun_s = time.monotonic()
    for number in range(2000):
        notifier.stage(f"stage {number}")
    notifier.ready("ready after all")
    assert time.monotonic() - begun_s < 5
    assert notifier.num_lost > 0
    for _ in range(2000 - notifier.num_lost + 1):  # one of the lost ones is READY
        assert heard(manager)[0].startswith("EXTEND_")
    assert silent(manager)
    notifier.alive()  # what was owed comes with the next turn
    assert heard(manager) == ["READY=1", "STATUS=ready after all"]
    assert heard(manager) == ["WATCHDOG=1"]


def test_a_manager_that_starts_anew_is_told_again(short_dir: Path) -> None:
    path, clock = str(short_dir / "n"), Clock()
    notifier = Notifier(path, 30_000_000, clock)
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(5)
            notifier.alive()
            assert heard(manager) == ["WATCHDOG=1"]
        clock.ns += 11_000_000_000
        notifier.alive()  # ECONNREFUSED, not an exception
        os.unlink(path)
    assert notifier.num_lost == 2


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative", "@", "/nowhere/at/all", "/" * 200])
def test_an_address_of_no_use_is_said_once(address: str, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(address, 30_000_000)
    notifier.ready("ready")
    notifier.alive()
    notifier.alive()
    assert caplog.text.count("notify_socket") == 1


def test_a_status_is_one_short_line(address: str, manager: socket.socket) -> None:
    Notifier(address).ready("a\nREADY=0 " + "x" * 5000)
    lines = heard(manager)
    assert lines[0] == "READY=1"
    assert len(lines) == 2
    assert len(lines[1]) <= len("STATUS=") + 200
    assert sdnotify.MIN_WATCHDOG_US == 3_000_000

"""Any child: greeted, refused with its own words, and given its own time to end."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from typing import Literal

import pytest

from server.core.effects import TierId
from server.porter.wire import Answer, Kind
from server.shell import keeper as keeper_module
from server.shell.keeper import Keeper
from server.shell.reports import (
    PorterAnswered,
    PorterEnded,
    PorterGone,
    PorterLost,
    PorterReady,
    PorterRefused,
    PorterStuck,
    Report,
)
from tests.faults.undying import Undying
from tests.server.shell.reporting import Reports
from tests.wire.process import ROOT, is_alive, wait_until

TIER = TierId(3)

ECHO = "import socket, sys\ns = socket.socket(fileno=int(sys.argv[1]))\n"


class ScriptRole:
    """A child that runs a few lines of Python on its end of the socket."""

    label = "script"
    party: Literal["copier", "porter"] = "porter"
    max_backoff_s = 0.2
    end_timeout_s = 1.0

    def __init__(self, script: str) -> None:
        self.script = script

    def command(self, fd: int) -> list[str]:
        return [sys.executable, "-c", ECHO + self.script, str(fd)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT)}

    def greet(self, channel: socket.socket) -> None:
        channel.send(b"hello")

    def receive(self, channel: socket.socket) -> bytes:
        return channel.recv(1000)

    def refusal(self, packet: bytes) -> str | None:
        if packet == b"nonsense":
            raise ValueError("it is nonsense")
        return None if packet == b"hello" else packet.decode()

    def ready(self, packet: bytes, pid: int, channel: socket.socket) -> Report:
        return PorterReady(TIER, pid, channel)

    def answered(self, packet: bytes) -> Report:
        return PorterAnswered(TIER, Answer(Kind.PROGRESS, len(packet)))

    def lost(self) -> Report:
        return PorterLost(TIER)

    def stuck(self, life: int, pid: int) -> Report:
        return PorterStuck(TIER, life, pid)

    def gone(self, life: int) -> Report:
        return PorterGone(TIER, life)

    def refused(self, why: str) -> Report | None:
        return PorterRefused(TIER, why)

    def ended(self) -> Report:
        return PorterEnded(TIER)


@pytest.fixture
def reports() -> Iterator[Reports]:
    with Reports() as made:
        yield made


def test_a_child_is_greeted_before_it_is_latey_and_told_of_in_order(reports: Reports) -> None:
    keeper = Keeper(ScriptRole("s.send(s.recv(9)); s.send(bytes(7)); s.recv(9)"), reports.reporter)
    keeper.start()
    ready = reports.wait_for(PorterReady)
    assert reports.wait_for(PorterAnswered).answer.number == 7
    keeper.retire()
    reports.wait_for(PorterLost)
    assert reports.wait_for(PorterEnded).tier == TIER
    assert keeper.join(10)
    assert not keeper.is_alive()
    assert not is_alive(ready.pid)
    ready.channel.close()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("s.send(b'no room')", "no room"),
        ("s.send(b'nonsense')", "it is nonsense"),
        ("s.close()", "it ended before it was ready"),
    ],
)
def test_why_one_cannot_be_used_is_told(reports: Reports, script: str, told: str) -> None:
    keeper = Keeper(ScriptRole(script), reports.reporter)
    keeper.start()
    reasons = [reports.wait_for(PorterRefused).reason for _ in range(2)]
    assert keeper.stop(10)
    assert all(told in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("script", "is_said"), [("s.send(b'no room')", False), ("s.close()", True)]
)
def test_how_one_ended_is_said_unless_it_told_why_itself(
    reports: Reports, caplog: pytest.LogCaptureFixture, script: str, is_said: bool
) -> None:
    caplog.set_level("INFO", logger="kvkeep.server")
    keeper = Keeper(ScriptRole(script), reports.reporter)
    keeper.start()
    for _ in range(2):
        reports.wait_for(PorterRefused)
    assert keeper.stop(10)
    assert any("ended with" in line for line in caplog.messages) == is_said


@pytest.mark.parametrize("is_late", [False, True])
def test_one_that_ends_before_it_is_greeted_is_heard_all_the_same(
    reports: Reports, is_late: bool
) -> None:
    role = ScriptRole("import time; s.send(b'no room'); time.sleep(0.1)")

    def greet(channel: socket.socket) -> None:
        assert channel.recv(100, socket.MSG_PEEK) == b"no room"
        if is_late:
            time.sleep(0.3)
        channel.send(b"hello")
        time.sleep(0.3)

    role.greet = greet  # type: ignore[method-assign]
    keeper = Keeper(role, reports.reporter)
    keeper.start()
    reason = reports.wait_for(PorterRefused).reason
    assert keeper.stop(10)
    assert reason == "no room"


def test_what_cannot_be_run_at_all_is_tried_again(reports: Reports) -> None:
    role = ScriptRole("")
    role.command = lambda fd: ["/nowhere/at/all"]  # type: ignore[method-assign]
    keeper = Keeper(role, reports.reporter)
    keeper.start()
    for _ in range(2):
        assert "No such file" in reports.wait_for(PorterRefused).reason
    assert keeper.stop(10)


@pytest.mark.parametrize("backoff_s", [0.05, 60.0])
def test_the_end_of_a_stuck_one_is_told_while_the_next_one_starts_or_is_waited_for(
    reports: Reports, monkeypatch: pytest.MonkeyPatch, backoff_s: float
) -> None:
    monkeypatch.setattr(keeper_module, "END_TIMEOUT_S", 0.2)
    monkeypatch.setattr(keeper_module, "_LONG_LIFE_S", 0)
    monkeypatch.setattr(keeper_module, "_FIRST_BACKOFF_S", backoff_s)
    role = ScriptRole("s.send(s.recv(9)); s.recv(9)")
    keeper = Keeper(role, reports.reporter)
    keeper.start()
    first = reports.wait_for(PorterReady)
    with Undying(first.pid) as held:
        role.script = "import time; time.sleep(60)"
        first.channel.shutdown(socket.SHUT_RDWR)
        stuck = reports.wait_for(PorterStuck)
        time.sleep(0.3)
        held.let_go()
        assert reports.wait_for(PorterGone, 5).life == stuck.life
    assert keeper.stop(10)
    first.channel.close()


@pytest.mark.parametrize(("takes_s", "is_killed"), [(0.3, False), (60, True)])
def test_one_has_its_own_time_to_end(reports: Reports, takes_s: float, is_killed: bool) -> None:
    script = f"import time\ns.send(s.recv(9)); s.recv(9); time.sleep({takes_s})"
    keeper = Keeper(ScriptRole(script), reports.reporter)
    keeper.start()
    ready = reports.wait_for(PorterReady)
    begun_s = time.monotonic()
    assert keeper.stop(10)
    took_s = time.monotonic() - begun_s
    assert took_s >= (ScriptRole.end_timeout_s if is_killed else takes_s)
    assert took_s < 5
    assert wait_until(lambda: not is_alive(ready.pid))
    ready.channel.close()

"""What all processes beside the server have in common; their lives are seen in test_webchild."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from server.heartbeat import BEAT
from server.shell.complaints import Complaints
from server.shell.sidechild import SideChild, child_environment
from server.shell.silence import Patience
from tests.wire.process import ROOT, wait_until


class Child(SideChild):
    what = "the process under test"
    lost, said, refused, stuck = "x_lost", "x_said", "x_refused", "x_stuck"
    counted = ("x_pid", "x_restarts")
    taken: list[str]

    def take(self, line: str) -> bool:
        self.taken.append(line)
        return line.startswith("mine ")

    def ended(self) -> None:
        """It keeps what it took."""


def child(script: str, complaints: Complaints, fds: tuple[int, ...] = ()) -> Child:
    command = [sys.executable, "-c", script]
    made = Child("x", command, ("SECRET_",), complaints, first_backoff_s=0.02, fds=fds)
    made.taken = []
    return made


def test_it_gets_the_descriptors_it_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    read, write = os.pipe()
    script = f"import os; os.write({write}, str('SECRET_KEY' in os.environ).encode()); input()"
    one = child(script, Complaints(), (write,))
    one.start()
    assert os.read(read, 10) == b"False"
    assert one.stop(10)
    assert not one.is_alive()
    os.close(read)
    os.close(write)


def test_its_lines_are_taken_or_logged_and_its_end_is_told() -> None:
    complaints = Complaints(interval_s=0)
    one = child("print('mine a'); print('other'); raise SystemExit(7)", complaints)
    one.start()
    assert wait_until(lambda: complaints.counts().get("x_lost", 0) >= 1)
    assert one.stop(10)
    assert one.taken[:2] == ["mine a", "other"]
    assert complaints.counts()["x_said"] >= 1
    assert one.figures()["x_restarts"] == one.starts - 1


def test_a_command_that_cannot_be_run_is_told_and_tried_again() -> None:
    complaints = Complaints(interval_s=0)
    one = Child("x", ["/does/not/exist"], (), complaints, first_backoff_s=0.01)
    one.start()
    assert wait_until(lambda: complaints.counts().get("x_lost", 0) >= 2)
    assert one.stop(10)


def test_one_that_was_never_started_ends_at_once() -> None:
    assert child("", Complaints()).stop(0)


def test_the_environment_leads_to_this_installation() -> None:
    found = child_environment({"A": "1", "SECRET_B": "2", "PYTHONPATH": "/a"}, ("SECRET_",))
    assert found == {"A": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}/a"}


BEATS = f"""
import time
while True:
    print({BEAT!r}, flush=True)
    time.sleep(0.02)
"""


def test_one_that_is_stopped_is_killed_and_another_is_started() -> None:
    complaints = Complaints(interval_s=0)
    one = child(BEATS, complaints)
    one.patience = Patience(turn_s=0.1, silent=4)
    one.start()
    assert wait_until(lambda: one.figures()["x_pid"] != 0)
    first = one.figures()["x_pid"]
    time.sleep(0.6)  # longer than it may be silent
    assert one.starts == 1, "one that speaks is left alone"
    os.kill(first, signal.SIGSTOP)
    assert wait_until(lambda: one.figures()["x_pid"] not in (0, first))
    assert complaints.counts() == {"x_stuck": 1}, "its end is not told once more"
    assert one.figures()["x_restarts"] == 1
    assert one.stop(10)
    assert one.taken == [], "that it lives is no line for anybody"


def test_one_that_hangs_as_the_server_ends_is_killed_and_not_complained_of() -> None:
    complaints = Complaints(interval_s=0)
    one = child(BEATS, complaints)
    one.start()
    assert wait_until(lambda: one.figures()["x_pid"] != 0)
    os.kill(one.figures()["x_pid"], signal.SIGSTOP)
    assert one.stop(10)
    assert complaints.counts() == {}

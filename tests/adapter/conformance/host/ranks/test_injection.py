"""Traps: at their point, after so many passes, so many times."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from adapter.conformance.host.ranks.injection import InjectedError, Injector, Trap
from tests.wire.process import ROOT


def test_a_trap_waits_for_its_point_and_its_turn() -> None:
    injector = Injector()
    injector.arm(Trap("bound", "fail", skip=1, times=2))
    injector.probe("queried", (1,))
    injector.probe("bound", (1,))
    for _ in range(2):
        with pytest.raises(InjectedError, match="injected at bound"):
            injector.reach("bound")
    injector.reach("bound")
    assert injector.passes() == {"queried": 1, "bound": 4}


def test_delays_and_what_is_taken_back() -> None:
    injector = Injector()
    injector.arm(Trap("launched", "delay", seconds=0.05))
    began_s = time.monotonic()
    injector.reach("launched")
    assert time.monotonic() - began_s >= 0.05
    injector.arm(Trap("launched", "fail"))
    injector.disarm()
    injector.reach("launched")


def test_a_delay_ends_when_it_is_taken_back() -> None:
    injector = Injector()
    injector.arm(Trap("queried", "delay", seconds=600.0))
    late = threading.Thread(target=injector.reach, args=("queried",), daemon=True)
    late.start()
    while not injector.passes():
        time.sleep(0.001)
    injector.disarm()
    late.join(60.0)
    assert not late.is_alive()


@pytest.mark.parametrize(("deed", "number"), [("die", 9), ("stop", 19)])
def test_a_process_dies_or_stops_where_it_is(deed: str, number: int) -> None:
    code = (
        "from adapter.conformance.host.ranks.injection import Injector, Trap\n"
        f"injector = Injector(); injector.arm(Trap('x', {deed!r})); injector.reach('x')\n"
        "print('went on')"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        if deed == "die":
            assert process.wait(20) == -number
        else:
            deadline_s = time.monotonic() + 20
            while time.monotonic() < deadline_s and _state(process.pid) != "T":
                time.sleep(0.01)
            assert _state(process.pid) == "T"
            process.kill()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0]

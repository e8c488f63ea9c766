"""The runner ends its child with all that the child started, whatever it is sent itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slow.ending import began, end, interruptible
from tests.slow.tiersteps import ROOT

LIMIT_S = 20.0

#: A step; what it starts has a session of its own, as a server in embedded mode.
STEP = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"],
                              start_new_session=True)
print(grandchild.pid, flush=True)
try:
    time.sleep(99)
except KeyboardInterrupt:
    print("asked", flush=True)
"""

RUNNER = f"""
import sys
from pathlib import Path
from tests.slow.__main__ import run_step
from tests.slow.ending import interruptible
from tests.slow.step import Step
with interruptible():
    run_step(Step("it", (sys.executable, "-c", {STEP!r}), 60), "1/1 it", Path(sys.argv[1]))
"""


def lines(path: Path, count: int) -> list[str]:
    """Of a file, once it has that many."""
    end_s, found = time.monotonic() + LIMIT_S, list[str]()
    while time.monotonic() < end_s:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{path} has {found}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_step_and_what_it_started(tmp_path: Path, number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as runner:
        (pid,) = lines(tmp_path / "slow-it.out", 1)
        assert began(int(pid)) is not None
        runner.send_signal(number)
        assert runner.wait(LIMIT_S) != 0
    assert lines(tmp_path / "slow-it.out", 2)[1:] == ["asked"], "the step could tidy up"
    assert began(int(pid)) is None


def test_who_does_not_listen_is_killed() -> None:
    deaf = "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    command = [sys.executable, "-c", deaf + "print('deaf', flush=True); time.sleep(99)"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"deaf\n"
    end(child, asked_s=0.1, told_s=0.1)
    assert child.wait(LIMIT_S) == -signal.SIGKILL
    child.stdout.close()


def test_further_signals_do_not_break_off_the_end() -> None:
    with interruptible():
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

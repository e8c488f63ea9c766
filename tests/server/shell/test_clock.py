"""The clock goes forward and is the one other processes read."""

import subprocess
import sys

from server.shell import clock


def test_it_never_goes_back_and_other_processes_agree() -> None:
    before_ns = clock.now_ns()
    command = [sys.executable, "-S", "-c", "import time; print(time.monotonic_ns())"]
    between_ns = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert before_ns <= between_ns <= clock.now_ns()

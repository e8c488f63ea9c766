import os
import subprocess
import sys
import threading
import time

import pytest

from adapter.conformance.loadgen.cpu import Meter, thread_cpu_ns


def test_own_thread_agrees_with_its_clock() -> None:
    tid = threading.get_native_id()
    before_ns, clock_ns = thread_cpu_ns(os.getpid(), tid), time.thread_time_ns()
    while time.thread_time_ns() - clock_ns < 50_000_000:
        pass
    used_ns = thread_cpu_ns(os.getpid(), tid) - before_ns
    assert 30_000_000 <= used_ns <= 500_000_000


def test_a_sleeping_process_uses_nothing_and_a_dead_one_is_told() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        meter = Meter(child.pid, child.pid)
        deadline = time.monotonic() + 10.0
        while meter.read() >= 0.05:  # what it did just after its line
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.kill()
    with pytest.raises(OSError, match="No such"):
        thread_cpu_ns(child.pid, child.pid)

"""Calls that do not come back end their process."""

import subprocess
import sys
import threading
import time

import pytest

from server.tiers.mooncakewatch import Watch, end_process


def test_a_call_under_way_for_too_long_is_seen_while_it_lasts() -> None:
    seen = threading.Event()
    watch = Watch(0.05, seen.set)
    with watch.over():
        assert seen.wait(10)
    watch.close()


def test_short_calls_are_not(caplog: pytest.LogCaptureFixture) -> None:
    seen = threading.Event()
    watch = Watch(5.0, seen.set)
    for _ in range(100):
        with watch.over():
            pass
    watch.close()
    assert not seen.is_set()
    assert not caplog.text


def test_a_call_that_came_back_too_late_is_seen_too(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    watch = Watch(0.2, lambda: told.append(1))
    watch.close()  # nobody looks meanwhile, as in a process that stood still
    with watch.over():
        time.sleep(0.25)
    assert told == [1]
    assert "longer than 0.2 s: this porter ends" in caplog.text


def test_one_call_is_seen_among_others_that_come_and_go() -> None:
    seen = threading.Event()
    watch = Watch(0.1, seen.set)
    with watch.over():
        limit = time.monotonic() + 10
        while not seen.is_set() and time.monotonic() < limit:
            with watch.over():
                time.sleep(0.005)
    watch.close()
    assert seen.is_set()


def test_end_process_ends_it() -> None:
    code = f"from {end_process.__module__} import end_process; end_process(); print('alive')"
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (-9, b"")

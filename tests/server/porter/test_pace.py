"""Bandwidth: bytes go no faster than allowed, all threads together, and a stop ends the wait."""

import threading
import time

from server.porter.pace import Pace


def test_without_a_bound_nothing_waits() -> None:
    begun_s = time.monotonic()
    Pace(0, threading.Event()).wait(1 << 40)
    assert time.monotonic() - begun_s < 0.5


def test_threads_share_the_bound() -> None:
    pace = Pace(1_000_000, threading.Event())
    begun_s = time.monotonic()

    def move() -> None:
        for _ in range(4):
            pace.wait(25_000)

    threads = [threading.Thread(target=move) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    # The first of twelve goes at once, the others 25 ms apart.
    assert time.monotonic() - begun_s >= 0.27


def test_a_pause_is_not_saved_up() -> None:
    pace = Pace(1_000_000, threading.Event())
    pace.wait(1)
    time.sleep(0.2)
    begun_s = time.monotonic()
    for _ in range(3):
        pace.wait(100_000)
    assert time.monotonic() - begun_s >= 0.19


def test_a_stop_ends_the_wait() -> None:
    stopping = threading.Event()
    pace = Pace(1, stopping)
    pace.wait(1000)
    stopping.set()
    begun_s = time.monotonic()
    pace.wait(1000)
    assert time.monotonic() - begun_s < 5

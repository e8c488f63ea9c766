"""Threads wake the one that waits, once or many times, before or while it waits."""

from __future__ import annotations

import select
import threading
import time

from server.copier.wake import Wake


def is_set(wake: Wake, timeout_s: float = 0) -> bool:
    return bool(select.select([wake], [], [], timeout_s)[0])


def test_it_is_readable_from_set_until_clear() -> None:
    wake = Wake()
    assert not is_set(wake)
    wake.clear()  # nobody set it, and nobody waits
    for _ in range(3):
        wake.set()
    assert is_set(wake)
    wake.clear()
    assert not is_set(wake)
    wake.close()


def test_it_ends_a_wait_under_way() -> None:
    wake = Wake()
    timer = threading.Timer(0.05, wake.set)
    timer.start()
    begun_s = time.monotonic()
    assert is_set(wake, 10)
    assert time.monotonic() - begun_s < 5
    timer.join()
    wake.close()

"""Waking another thread's poll."""

from __future__ import annotations

import os
import select
import threading

import pytest

from adapter.wake import Wake


def is_readable(wake: Wake, timeout_ms: int) -> bool:
    poller = select.poll()
    poller.register(wake.fileno(), select.POLLIN)
    return bool(poller.poll(timeout_ms))


def test_set_ends_a_poll_of_another_thread_until_cleared() -> None:
    wake = Wake()
    assert not is_readable(wake, 0)
    threading.Timer(0.01, wake.set).start()
    assert is_readable(wake, 5000)
    wake.set()
    wake.clear()
    assert not is_readable(wake, 0)
    wake.clear()


def test_descriptor_is_closed_with_the_object() -> None:
    wake = Wake()
    fd = wake.fileno()
    del wake
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)

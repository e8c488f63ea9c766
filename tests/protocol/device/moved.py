"""Bytes of simulated devices as the tests look at them, and waits with an end."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Event
from protocol.device.simulated import driver


def content(address: int) -> NDArray[np.uint8]:
    """The bytes of the allocation that an address begins."""
    found = driver.current()
    assert found is not None
    made = found.allocation_at(address)
    assert made is not None
    return made.array


def pages(num_bytes: int) -> NDArray[np.uint8]:
    """Host memory that begins with a page; the caller holds it."""
    whole = np.zeros(num_bytes + 4096, dtype=np.uint8)
    return whole[-whole.ctypes.data % 4096 :][:num_bytes]


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; ten seconds at most."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def wait(event: Event) -> None:
    """Until the point is reached."""
    wait_for(event.query)

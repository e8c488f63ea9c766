"""A folder of simulated devices for each test, and the end of all that this process had there."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.device.simulated import driver, ledger, settings
from protocol.device.simulated.device import SimulatedDevice


@pytest.fixture
def folder(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Switches simulated devices on; without delays, so that a test says itself what is late."""
    monkeypatch.setenv(settings.FOLDER, str(shm_dir))
    monkeypatch.setenv(settings.DELAY_US, "0")
    monkeypatch.delenv(settings.VISIBLE, raising=False)
    with driver.ending(shm_dir):
        yield shm_dir
    taken = [ledger.census(shm_dir, device) for device in range(settings.MAX_DEVICES)]
    assert taken == [ledger.Census(0, 0, 0)] * settings.MAX_DEVICES
    assert list(shm_dir.glob("[mfc]*-*")) == []
    until = time.monotonic() + 10
    while any(t.name.startswith("stream-") for t in threading.enumerate()):
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.005)


@pytest.fixture
def driven(folder: Path) -> driver.Driver:
    """The driver of this process."""
    found = driver.current()
    assert found is not None
    return found


@pytest.fixture
def device(driven: driver.Driver) -> SimulatedDevice:
    """Device 0, bound to the test's thread."""
    found = driven.device(0)
    found.bind()
    return found

"""A simulated device for each test that asks for one, ended after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from protocol.device.interface import Device
from protocol.device.simulated import driver, settings


@pytest.fixture
def gpu_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Simulated devices are on, in this process and in its children."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    monkeypatch.setenv(settings.FOLDER, str(folder))
    with driver.ending(folder):
        yield folder


@pytest.fixture
def device(gpu_folder: Path) -> Device:
    """Device 0, bound to the test's thread."""
    current = driver.current()
    assert current is not None
    found = current.device(0)
    found.bind()
    return cast(Device, found)

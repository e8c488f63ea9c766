"""The simulated device for the tests beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.device.simulated import driver
from tests.gpu.ground import Ground, ground_for


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """A ground of this process, ended afterwards."""
    folder = tmp_path / "cuda"
    folder.mkdir()
    monkeypatch.setenv("KVKEEP_SIMULATED_CUDA", str(folder))
    with driver.ending(folder):
        yield ground_for("simulated")

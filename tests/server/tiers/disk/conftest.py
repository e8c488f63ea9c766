"""A folder that servers share, and who opens it, for the tests of tenants there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tiers.disk.files import Files
from server.tiers.disk.shared import SharedTier
from tests.server.tiers.disk.tenants import SIZE, Open


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "l2"


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    tiers: list[SharedTier] = []

    def make(files: Files | None = None, rescan_s: float = 60.0, size: int = SIZE) -> SharedTier:
        tiers.append(SharedTier(str(folder), size, "disk", files, rescan_s, touch_s=0.0))
        assert tiers[-1]._keeper.wait_known(60.0)  # else a busy machine has no room yet
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()

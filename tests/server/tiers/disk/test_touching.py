"""Both layouts: what is touched is used, so it stays though nobody reads it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.tiers.disk.shared import SharedTier
from server.tiers.disk.slab import SlabTier
from tests.server.tiers.disk.rig import MIB, FaultyFiles, name_of, put

AnyTier = SlabTier | SharedTier
ROOM = 65_536

KINDS: dict[str, Callable[[str, FaultyFiles], AnyTier]] = {
    "slab": lambda folder, files: SlabTier(folder, 16 * MIB, "disk", files),
    "files": lambda folder, files: SharedTier(folder, 4 * MIB, "disk", files, touch_s=0.0),
}


@pytest.fixture(params=list(KINDS))
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[AnyTier, FaultyFiles]]:
    files = FaultyFiles()
    tier = KINDS[request.param](str(tmp_path / "l2"), files)
    yield tier, files
    tier.close()


def test_what_is_touched_stays_and_the_rest_goes(opened: tuple[AnyTier, FaultyFiles]) -> None:
    tier, _ = opened
    put(tier, *range(4), room=ROOM)
    number = 100
    while tier.batch_exists([name_of(2)])[0] and number < 2000:
        assert tier.touch([name_of(one) for one in (0, 1, 77)]) == [
            *(Status.OK, Status.OK),
            Status.ABSENT,
        ]
        time.sleep(0.001)
        put(tier, *range(number, number + 8), room=ROOM)
        number += 8
    assert tier.batch_exists([name_of(one) for one in (0, 1, 2)]) == [True, True, False]


def test_a_file_that_cannot_be_opened_is_neither_there_nor_gone(tmp_path: Path) -> None:
    files = FaultyFiles()
    tier = KINDS["files"](str(tmp_path / "l2"), files)
    put(tier, 1)
    files.fail("open", errno.EIO)
    assert tier.touch([name_of(1)]) == [Status.ERROR]
    tier.close()


def test_a_closed_slab_cannot_say(tmp_path: Path) -> None:
    tier = KINDS["slab"](str(tmp_path / "l2"), FaultyFiles())
    put(tier, 1)
    tier.close()
    assert tier.touch([name_of(1)]) == [Status.ERROR]

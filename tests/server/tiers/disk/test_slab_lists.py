"""The slab: what it has, and of which namespaces."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.disk.slab import SlabTier
from tests.server.tiers.disk.rig import (
    FINGERPRINT,
    MIB,
    OTHER,
    PARENT,
    FaultyFiles,
    filled,
    get,
    name_of,
    put,
)

Open = Callable[..., SlabTier]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    tiers: list[SlabTier] = []

    def make(files: FaultyFiles | None = None) -> SlabTier:
        tiers.append(SlabTier(str(tmp_path / "l2"), 16 * MIB, "disk", files))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()


def test_it_lists_what_was_used_last_and_peeks_without_using_it(opened: Open) -> None:
    tier = opened()
    assert put(tier, *range(6)) == {Status.OK}
    assert put(tier, 9, fingerprint=OTHER) == {Status.OK}
    assert tier.batch_put([filled(20, shard=1)]) == [Status.OK]
    listed = [name_of(number).key for number in reversed(range(6))]
    assert tier.hottest(FINGERPRINT, 0, 100) == listed
    assert tier.hottest(FINGERPRINT, 1, 100) == [name_of(20).key]
    assert tier.hottest(FINGERPRINT, 0, 2) == listed[:2]
    assert tier.hottest(bytes(16), 0, 100) == []
    header = tier.peek(name_of(0))
    assert header == bytes(filled(0).header)
    assert values.parent_of(header, name_of(0)) == PARENT
    assert tier.peek(name_of(77)) == b""
    assert tier.hottest(FINGERPRINT, 0, 100) == listed
    assert get(tier, 2) is Status.OK
    assert tier.hottest(FINGERPRINT, 0, 1) == [name_of(2).key]


def test_what_namespaces_are_outlives_the_porter_and_goes_with_them(opened: Open) -> None:
    tier = opened()
    tier.keep_namespace(FINGERPRINT, b"one")
    tier.keep_namespace(OTHER, b"two")
    put(tier, 1)
    tier.close()
    again = opened()
    assert set(again.namespaces()) == {FINGERPRINT, OTHER}
    assert again.namespace(OTHER) == b"two"
    assert again.hottest(FINGERPRINT, 0, 5) == [name_of(1).key]
    again.clear(OTHER)
    assert again.namespaces() == [FINGERPRINT]
    assert again.namespace(OTHER) == b""
    put(again, 2, fingerprint=OTHER)
    assert again.namespaces() == [FINGERPRINT, OTHER], "nobody described it; it can be cleared"


def test_a_lost_folder_lists_nothing_and_a_broken_disk_says_so(
    opened: Open, tmp_path: Path
) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 1)
    files.fail("preadv")
    with pytest.raises(OSError):
        tier.peek(name_of(1))
    files.heal()
    assert tier.peek(name_of(1))  # nothing is left pinned or forgotten
    shutil.rmtree(tmp_path / "l2")
    assert tier.namespaces() == []
    tier.keep_namespace(FINGERPRINT, b"one")
    assert not (tmp_path / "l2").exists()

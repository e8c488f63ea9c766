from __future__ import annotations

import numpy as np
import pytest

from tests.restarts.content import (
    GUEST_PAGE_BYTES,
    MAIN,
    PAGE_BYTES,
    as_bytes,
    keys_of,
    num_wrong,
    pages,
)


def test_keys_are_all_different() -> None:
    keys = [
        key
        for space in range(3)
        for chain in (0, 1, 2, 1 << 32)
        for key in as_bytes(keys_of(space, chain, 128))
    ]
    assert len(set(keys)) == len(keys) == 3 * 4 * 128


def test_a_longer_chain_begins_with_the_shorter() -> None:
    assert np.array_equal(keys_of(MAIN, 7, 100)[:10], keys_of(MAIN, 7, 10))


@pytest.mark.parametrize("num_bytes", [PAGE_BYTES, GUEST_PAGE_BYTES])
def test_a_single_changed_or_foreign_word_is_seen(num_bytes: int) -> None:
    keys = keys_of(MAIN, 3, 5)
    right = pages(keys, num_bytes).view(np.uint8)
    assert right.shape == (5, num_bytes)
    assert num_wrong(right, keys) == 0
    assert num_wrong(right[::-1], keys) == 4
    for at in (0, 15, 16, num_bytes // 2, num_bytes - 1):
        spoilt = right.copy()
        spoilt[2, at] ^= 1
        assert num_wrong(spoilt, keys) == 1
    other = pages(keys_of(MAIN, 4, 5), num_bytes).view(np.uint8)
    for at in range(0, num_bytes, 512):  # half an old page, half a new one
        torn = right.copy()
        torn[:, at:] = other[:, at:]
        assert num_wrong(torn, keys) == 5


def test_a_page_begins_with_its_key() -> None:
    keys = keys_of(2, 9, 3)
    content = pages(keys, GUEST_PAGE_BYTES).view(np.uint8)
    assert [row[:16].tobytes() for row in content] == as_bytes(keys)

"""Settling: what was seen of the store changes a row only where nothing later contradicts it."""

from __future__ import annotations

import pytest

from server.tiers.ledger.rows import Row
from server.tiers.ledger.settling import settle

KNOWN = Row(10, stamp=20, ended=21)
OPEN = Row(10, stamp=20, ended=0)
N = b"n"


@pytest.mark.parametrize(
    ("row", "ended", "used", "gone", "is_flying", "expected"),
    [
        (OPEN, 25, 0, 0, False, OPEN._replace(ended=25)),
        (OPEN, 19, 0, 0, False, OPEN),  # of the write before
        (OPEN, 25, 0, 0, True, OPEN),  # another one is under way
        (None, 25, 30, 40, False, None),
        (KNOWN, 0, 30, 0, False, KNOWN._replace(stamp=30)),
        (KNOWN, 0, 24, 0, False, KNOWN),  # young
        (KNOWN, 0, 0, 21, False, None),
        (KNOWN, 0, 0, 20, False, KNOWN),  # asked before the write had ended
        (KNOWN, 0, 0, 30, True, KNOWN),
        (OPEN, 0, 0, 30, False, OPEN),  # it may still come
        (OPEN, 25, 0, 30, False, None),
        (OPEN, 25, 0, 24, False, OPEN._replace(ended=25)),
    ],
)
def test_a_row_becomes(
    row: Row | None, ended: int, used: int, gone: int, is_flying: bool, expected: Row | None
) -> None:
    taken = tuple({N: at} if at else {} for at in (ended, used, gone))
    changes = settle({N: row}.get, lambda name: is_flying, taken, 5)  # type: ignore[arg-type]
    assert changes.get(N, row) == expected
    assert expected != row or not changes

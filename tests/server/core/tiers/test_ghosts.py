"""Ghosts: what was evicted is remembered, by namespace, until another key takes its place."""

from __future__ import annotations

import hashlib

import numpy as np

from protocol.ids import Fingerprint
from server.core.tiers.ghosts import ENTRIES, Ghosts

SPACE, OTHER = Fingerprint(b"s" * 16), Fingerprint(b"o" * 16)


def keys(name: str, count: int) -> list[bytes]:
    return [hashlib.sha256(f"{name}{number}".encode()).digest()[:16] for number in range(count)]


def test_evicted_keys_are_remembered_and_others_are_not() -> None:
    ghosts, gone, never = Ghosts(), keys("gone", 1000), keys("never", 1000)
    ghosts.note(SPACE, np.frombuffer(b"".join(gone), "V16"))
    assert sum(ghosts.has(SPACE, key) for key in gone) >= 999  # two may share a place
    assert not any(ghosts.has(SPACE, key) for key in never)
    assert not any(ghosts.has(OTHER, key) for key in gone)


def test_a_later_key_takes_the_place_of_an_earlier_one() -> None:
    ghosts = Ghosts()
    low = (5).to_bytes(8, "little")
    first, second = low + b"1" * 8, low + b"2" * 8
    for key in (first, second):
        ghosts.note(SPACE, np.frombuffer(key, "V16"))
    assert (ghosts.has(SPACE, first), ghosts.has(SPACE, second)) == (False, True)


def test_a_zero_mark_is_not_taken_for_an_empty_place() -> None:
    ghosts = Ghosts()
    assert not ghosts.has(SPACE, SPACE)  # the two cancel out to zeros
    ghosts.note(SPACE, np.frombuffer(SPACE, "V16"))
    assert ghosts.has(SPACE, SPACE)
    assert ENTRIES * 4 == 8 << 20

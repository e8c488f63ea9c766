"""What is in doubt is removed again, when its store has answered for a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.tiers.doubts import Doubts
from server.tiers.interface import Name, TierError

SETTLE_S = 60.0
FINGERPRINT = b"f" * 16
ONE, TWO = (Name(FINGERPRINT, bytes([number]) * 16, 0) for number in (1, 2))
OTHER = Name(b"o" * 16, b"\1" * 16, 0)
AGAIN = "a put that was given up may still come"


class Store:
    """Removals from a store, each with its time."""

    def __init__(self, limit: int = 10) -> None:
        self.now_s = 100.0
        self.doubts = Doubts(lambda: self.now_s, SETTLE_S, limit)
        self.removals: list[float] = []

    def remove(self, concerns: Callable[[Name], bool]) -> bool:
        """Whether a removal holds."""
        try:
            with self.doubts.removal("kind", concerns):
                self.removals.append(self.now_s)
        except TierError as error:
            if AGAIN not in str(error):
                raise
            return False
        return True

    def clear(self) -> bool:
        return self.remove(lambda name: name.fingerprint == FINGERPRINT)

    def delete(self, *names: Name) -> bool:
        return self.remove(names.__contains__)


def test_without_a_doubt_one_removal_holds() -> None:
    store = Store()
    assert store.clear()
    assert store.delete(ONE)
    assert store.removals == [100.0, 100.0]


def test_in_doubt_it_is_done_at_once_and_again_when_the_store_has_answered_for_a_while() -> None:
    store = Store()
    store.doubts.note([ONE])
    assert not store.clear()
    assert store.removals == [100.0]
    store.now_s += SETTLE_S - 1
    assert not store.clear()
    assert store.removals == [100.0], "nobody is bothered in between"
    store.now_s += 1
    assert store.clear()
    assert store.removals == [100.0, 160.0]


def test_a_store_that_stood_still_for_long_is_waited_for_all_the_same() -> None:
    """What it was sent comes when it goes on, however long ago that was."""
    store = Store()
    store.doubts.note([ONE])
    store.now_s += 1000.0
    with pytest.raises(ZeroDivisionError), store.doubts.removal("kind", lambda name: True):
        raise ZeroDivisionError  # it does not answer yet
    assert not store.clear()
    store.now_s += SETTLE_S
    assert store.clear()


def test_a_store_that_was_well_for_a_while_is_not_doubted_any_more() -> None:
    store = Store()
    store.doubts.note([ONE])
    store.doubts.answered()
    store.now_s += SETTLE_S / 2
    assert not store.clear(), "it removes, and must again"
    assert store.removals == [130.0]
    store.now_s += SETTLE_S / 2
    store.doubts.answered()
    assert store.clear()


def test_another_put_in_doubt_begins_it_anew() -> None:
    store = Store()
    store.doubts.note([ONE])
    assert not store.clear()
    store.now_s += SETTLE_S
    store.doubts.note([ONE])
    assert not store.clear()
    store.now_s += SETTLE_S
    assert store.clear()


def test_only_what_is_in_doubt_is_removed_again() -> None:
    store = Store()
    store.doubts.note([ONE])
    assert store.delete(TWO, OTHER)
    assert not store.delete(ONE, TWO)
    store.now_s += SETTLE_S
    assert store.delete(ONE, TWO)


def test_a_removal_in_several_calls_was_begun_with_the_first() -> None:
    store = Store()
    store.doubts.note([ONE])
    assert not store.clear()
    begun_s, store.now_s = store.now_s, store.now_s + SETTLE_S
    with (
        pytest.raises(TierError, match=AGAIN),
        store.doubts.removal("kind", lambda name: True) as removal,
    ):
        removal.begun_s = begun_s
    assert store.clear()


def test_with_too_many_names_everything_is_in_doubt() -> None:
    store = Store(limit=2)
    store.doubts.note([ONE, TWO])
    assert store.delete(OTHER)
    store.doubts.note([OTHER._replace(shard=1)])
    assert not store.delete(OTHER)
    store.now_s += SETTLE_S
    assert store.delete(OTHER)


def test_a_removal_in_several_calls_outlives_no_doubt() -> None:
    """What came while it went on lies behind it, though the store was well for long since."""
    store = Store()
    store.doubts.note([ONE])
    store.doubts.answered()
    begun_s, store.now_s = store.now_s, store.now_s + SETTLE_S + 1.0
    store.doubts.answered()
    with (
        pytest.raises(TierError, match=AGAIN),
        store.doubts.removal("kind", lambda name: True) as removal,
    ):
        removal.begun_s = begun_s
    assert store.clear()


def test_settled_doubts_make_room_for_others() -> None:
    store = Store(limit=2)
    store.doubts.note([ONE, TWO])
    store.doubts.answered()
    store.now_s += SETTLE_S
    store.doubts.note([OTHER])
    assert store.clear()
    assert not store.delete(OTHER)

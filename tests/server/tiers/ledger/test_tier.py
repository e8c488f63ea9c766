"""A store with a ledger: limits hold, and what counts is what is there, whatever the store does."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.core.tiers.parts import Share, Status
from server.tiers.interface import Lister, Moving, Part, Sharing, TierError, Touching
from server.tiers.ledger.tier import LATE_S, LedgerTier
from tests.server.tiers.ledger.rig import (
    VALUE,
    A,
    B,
    Clock,
    F,
    G,
    Open,
    Shelf,
    kill,
    name,
    part,
    put,
    rows,
)

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, LOCKED, OVER = Status


def shares(tier: LedgerTier) -> tuple[dict[bytes, int], dict[bytes, int]]:
    health = tier.health()
    return dict(health.shares), dict(health.salts)


def test_it_is_what_its_engine_is_and_knows_tenants(begun: Open) -> None:
    tier, store = begun()
    assert isinstance(tier, Sharing)
    assert isinstance(tier, Touching)
    assert isinstance(tier, Moving)
    assert not isinstance(tier, Lister)
    tier.moved = lambda: None  # an engine that is none is not told
    assert not hasattr(store, "moved")


def test_what_is_written_counts_for_its_namespace_and_its_salt(begun: Open) -> None:
    tier, _ = begun()
    tier.set_quotas([Share(True, A, 0, 100 * VALUE), Share(True, B, 0, 100 * VALUE)])
    assert put(tier, A, 1, 2, 3) == [OK] * 3
    assert put(tier, b"", 4) == [OK]
    assert put(tier, A, 1, space=G) == [OK]
    assert shares(tier) == ({F: 4 * VALUE, G: VALUE}, {A: 4 * VALUE, B: 0})
    assert sorted(tier.of_salt(A, 100)) == [name(1), name(2), name(3), name(1, G)]
    assert len(tier.of_salt(A, 2)) == 2
    tier.delete([name(1), name(4), name(99)])
    assert shares(tier) == ({F: 2 * VALUE, G: VALUE}, {A: 3 * VALUE, B: 0})
    tier.clear(F)
    assert shares(tier) == ({G: VALUE}, {A: VALUE, B: 0})


def test_a_flood_takes_room_from_its_own_alone_and_never_more_than_its_limit(
    begun: Open, shelf: Shelf
) -> None:
    tier, _ = begun()
    tier.set_quotas([Share(True, B, 0, 10 * VALUE)])
    put(tier, A, *range(20))
    for number in range(100, 200, 4):
        assert put(tier, B, *range(number, number + 4)) == [OK] * 4
        assert len(tier.of_salt(B, 1000)) <= 10
    assert {one for one in shelf.kept if name(100) <= one} == {name(n) for n in range(190, 200)}
    assert all(name(number) in shelf.kept for number in range(20))


def test_what_was_read_last_goes_last(begun: Open, shelf: Shelf) -> None:
    tier, _ = begun()
    tier.set_quotas([Share(True, A, 0, 3 * VALUE)])
    put(tier, A, 1, 2, 3)
    assert tier.batch_get_into([part(1)]) == [OK]
    assert tier.touch([name(2)]) == [OK]
    put(tier, A, 4)
    assert set(shelf.kept) == {name(1), name(2), name(4)}


def test_a_namespaces_limit_holds_as_a_salts_does(begun: Open, shelf: Shelf) -> None:
    tier, _ = begun()
    tier.set_quotas([Share(False, F, 0, 3 * VALUE), Share(True, A, 0, 2 * VALUE)])
    put(tier, b"", 1, 2, 3)
    put(tier, A, 1, 2, space=G)
    assert put(tier, A, 4) == [OK]
    assert shares(tier) == ({F: 3 * VALUE, G: VALUE}, {A: 2 * VALUE})
    assert set(shelf.kept) == {name(2), name(3), name(4), name(2, G)}


def test_what_no_limit_can_hold_is_over_and_nothing_goes_for_it(begun: Open, shelf: Shelf) -> None:
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, VALUE - 1)])
    put(tier, B, 1)
    assert put(tier, A, 2) == [OVER]
    tier.set_quotas([Share(True, A, 0, 2 * VALUE)])
    assert sorted(put(tier, A, *range(10, 20))) == [OK] * 2 + [OVER] * 8
    assert len(shelf.kept) == 3
    assert store.deleted == []


def test_a_limit_that_is_lowered_is_kept_after_a_trim(begun: Open) -> None:
    tier, _ = begun()
    put(tier, A, *range(10))
    assert not tier.trim()
    tier.set_quotas([Share(True, A, 0, 4 * VALUE)])
    while tier.trim():
        pass
    assert len(tier.of_salt(A, 100)) == 4
    assert name(9) in tier.of_salt(A, 100)


def test_where_the_store_removes_nothing_there_is_no_room(begun: Open, shelf: Shelf) -> None:
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, 2 * VALUE)])
    put(tier, A, 1, 2)
    store.is_away = True
    assert put(tier, A, 3) == [OVER]
    tier.set_quotas([Share(True, A, 0, VALUE)])
    with pytest.raises(TierError, match="away"):
        tier.trim()
    store.is_away = False
    assert put(tier, A, 3) == [OK], "they may go by now"
    assert set(shelf.kept) == {name(3)}


def test_what_the_store_has_lost_counts_no_more(begun: Open, shelf: Shelf) -> None:
    tier, _ = begun()
    put(tier, A, 1, 2, 3, 4)
    for number in (1, 2, 3):
        del shelf.kept[name(number)]
    assert tier.batch_get_into([part(1)]) == [ABSENT]
    assert tier.touch([name(2)]) == [ABSENT]
    assert tier.batch_exists([name(4), name(3)]) == [True, False]
    assert len(rows(tier)) == 4, "nobody who reads or asks waits for the ledger"
    tier.health()  # asks for the last one, of which it only had a hint
    tier.health()
    assert rows(tier) == {name(4): A}


def test_a_hint_that_the_store_does_not_confirm_is_none(begun: Open, shelf: Shelf) -> None:
    tier, store = begun()
    put(tier, A, 1)
    lost = shelf.kept.pop(name(1))
    assert tier.batch_exists([name(1)]) == [False]
    shelf.kept[name(1)] = lost
    ask, store.batch_exists = store.batch_exists, _away  # type: ignore[method-assign]
    tier.health()
    tier.health()
    assert rows(tier) == {name(1): A}
    store.batch_exists = ask  # type: ignore[method-assign]
    shelf.kept.clear()
    assert tier.batch_exists([name(1)]) == [False]
    tier.health()
    tier.health()
    assert rows(tier) == {}


def _away(names: object) -> list[bool]:
    raise TierError("it is away")


def test_a_put_that_failed_counts_until_nothing_of_it_can_come(
    begun: Open, shelf: Shelf, clock: Clock
) -> None:
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, 2 * VALUE)])
    store.fails = True
    assert put(tier, A, 1, 2) == [ERROR] * 2
    store.fails = False
    assert tier.touch([name(1)]) == [ABSENT], "it is on its way"
    assert put(tier, A, 3) == [OVER], "both may come: there is no room"
    assert store.deleted == []
    with pytest.raises(TierError, match="come again"):
        tier.delete([name(1)])
    shelf.kept[name(2)] = shelf.coming.pop(name(2))
    shelf.coming.clear()
    tier.health()  # the store answers, since now
    assert len(tier.of_salt(A, 9)) == 2
    clock.now_s += 61
    tier.health()
    assert tier.of_salt(A, 9) == [name(2)]
    assert put(tier, A, 3) == [OK]


def test_what_was_under_way_at_a_kill_counts_and_its_removal_holds_only_later(
    begun: Open, shelf: Shelf, clock: Clock
) -> None:
    tier, store = begun()
    put(tier, A, 1)
    store.fails = True
    put(tier, A, 2)
    kill(tier)
    tier, store = begun()
    assert sorted(tier.of_salt(A, 9)) == [name(1), name(2)]
    with pytest.raises(TierError, match="may still come"):
        tier.delete([name(2)])
    shelf.come()
    assert sorted(tier.of_salt(A, 9)) == [name(1), name(2)]
    tier.health()
    clock.now_s += 61
    tier.delete([name(2), name(1)])
    assert tier.of_salt(A, 9) == []
    assert shelf.kept == {}


def test_a_clear_in_many_calls_that_began_before_holds_only_if_done_again(
    begun: Open, shelf: Shelf, clock: Clock
) -> None:
    tier, store = begun()
    store.fails = True
    put(tier, A, 1)
    kill(tier)
    tier, store = begun()
    tier.health()
    store.is_away = True
    clock.now_s += 30
    put(tier, A, 2)
    with pytest.raises(TierError, match="away"):
        tier.clear(F)
    store.is_away = False
    shelf.come()
    clock.now_s += 31
    with pytest.raises(TierError, match="may still come"):
        tier.clear(F)
    tier.clear(F)
    assert (rows(tier), shelf.kept) == ({}, {})


@pytest.mark.parametrize("what", ["delete", "clear"])
def test_what_is_written_while_a_removal_is_under_way_counts_on(
    begun: Open, shelf: Shelf, what: str
) -> None:
    tier, store = begun()
    put(tier, A, 1, 2)
    remove = getattr(store, what)

    def slowly(argument: object) -> None:
        remove(argument)
        wanted = part(1, A)
        packed = [name(1)[0] + name(1)[1] + bytes(4)]
        tier._notes.fly(packed)  # it was entered before, and comes to the store only now
        assert store.batch_put([wanted]) == [OK]
        tier._notes.land(packed, True)

    setattr(store, what, slowly)
    if what == "delete":
        tier.delete([name(1), name(2)])
    else:
        tier.clear(F)
    assert rows(tier) == {name(1): A}
    assert set(shelf.kept) == {name(1)}


def test_there_is_a_most_of_values_and_the_oldest_make_room(begun: Open, shelf: Shelf) -> None:
    tier, _ = begun(max_values=8)
    put(tier, A, *range(4))
    put(tier, B, *range(4), space=G)
    assert put(tier, A, 50) == [OK]
    assert len(rows(tier)) <= 8
    assert set(rows(tier)) == set(shelf.kept)
    assert name(0) not in shelf.kept
    assert name(3, G) in shelf.kept


def test_removing_that_takes_long_leaves_no_time_to_write(begun: Open, clock: Clock) -> None:
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, VALUE)])
    put(tier, A, 1)
    delete = store.delete

    def slowly(names: list[object]) -> None:
        clock.now_s += LATE_S
        delete(names)  # type: ignore[arg-type]

    store.delete = slowly  # type: ignore[assignment, method-assign]
    assert put(tier, A, 2) == [OVER], "it waited for room, and is not entered"
    assert put(tier, B, 2) == [OK]
    assert rows(tier) == {name(2): B}
    assert put(tier, A, 3) == [OK]
    assert tier.batch_put([part(4, B), part(5, A)]) == [ERROR, OVER]
    assert set(rows(tier)) == {name(2), name(4)}, "the one that was entered is in doubt"


def test_threads_that_write_read_and_delete_at_once_keep_to_a_limit(
    begun: Open, shelf: Shelf
) -> None:
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, 6 * VALUE)])
    most: list[int] = []
    carry = store.batch_put

    def counted(parts: list[Part]) -> list[Status]:
        statuses = carry(parts)
        most.append(sum(one.fingerprint == F for one in [*shelf.kept]))
        return statuses

    store.batch_put = counted  # type: ignore[assignment, method-assign]

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(150):
            numbers = draw.sample(range(12), 3)
            if draw.random() < 0.6:
                put(tier, A, *numbers)
            elif draw.random() < 0.5:
                tier.batch_get_into([part(number) for number in numbers])
            else:
                put(tier, B, *numbers, space=G)
                tier.delete([name(numbers[0], G)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert max(most) <= 6
    assert set(shelf.kept) <= set(rows(tier))
    tier.touch([name(number, space) for number in range(12) for space in (F, G)])
    tier.health()
    assert set(rows(tier)) == set(shelf.kept)
    assert dict(tier.health().salts) == {A: VALUE * sum(one.fingerprint == F for one in shelf.kept)}

"""Sums by tenant are exact, and quotas say what may be taken from whom."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np

from server.core.tiers.parts import Share
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.shares import NOBODY, Shares, Whose, alone, whose

A, B = b"a" * 16, b"b" * 16
S, T = b"s" * 16, b"t" * 16
SPACE_A, SALT_S, SALT_T = (False, A), (True, S), (True, T)


def held(shares: Shares, one: Whose, count: int, size: int = 10) -> int:
    number = shares.number(one)
    shares.count(number, count, count * size)
    return number


def test_each_value_counts_for_its_namespace_and_its_salt() -> None:
    shares = Shares()
    held(shares, Whose(A, S), 3)
    held(shares, Whose(B, S), 2)
    last = held(shares, Whose(A), 1)
    assert shares.bytes_of == {SPACE_A: 40, (False, B): 20, SALT_S: 50}
    assert shares.spaces() == ((A, 40), (B, 20))
    assert shares.salts() == (), "none has a quota"
    shares.set_quotas([Share(True, S, 1, 0), Share(True, T, 0, 5)])
    assert dict(shares.salts()) == {S: 50, T: 0}
    shares.count(last, -1, -10)
    assert shares.bytes_of[SPACE_A] == 30


def test_numbers_of_groups_without_values_are_given_again() -> None:
    shares = Shares()
    for number in range(1000):
        salt = number.to_bytes(16, "big")
        group = held(shares, Whose(A, b"x" + salt[1:]), 1)
        shares.count(group, -1, -10)
    assert len(shares.whose) <= 2
    assert not shares.bytes_of
    kept = held(shares, Whose(A, S), 1)
    shares.reserve(kept, 10)
    shares.count(kept, -1, -10)
    assert shares.number(Whose(A, T)) != kept, "somebody writes for it"
    shares.reserve(kept, -10)
    assert not shares.members(SALT_S).any()


def test_sums_are_those_of_a_recount_after_anything() -> None:
    rng, shares = Random(1), Shares()
    there: list[tuple[int, Whose]] = []
    for _ in range(3000):
        if there and rng.random() < 0.45:
            number, _ = there.pop(rng.randrange(len(there)))
            shares.count(number, -1, -10)
        else:
            one = Whose(rng.choice([A, B]), rng.choice([b"", S, T]))
            there.append((held(shares, one, 1), one))
    counted: Counter[tuple[bool, bytes]] = Counter()
    for _, one in there:
        counted.update(dict.fromkeys(one.tenants, 10))
    assert shares.bytes_of == dict(counted)
    assert all(shares.whose[number] == one for number, one in there)


def test_many_at_once_get_the_numbers_that_each_would_get() -> None:
    shares = Shares()
    names = np.frombuffer(b"".join(one + bytes(NAME_BYTES - 16) for one in (A, B, A)), np.uint8)
    salts = np.frombuffer(S + bytes(16) + S, np.uint8)
    found = shares.numbers(names.reshape(3, -1), salts.reshape(3, -1))
    assert found.tolist() == [shares.number(one) for one in (Whose(A, S), Whose(B), Whose(A, S))]


def test_a_floor_holds_against_others_and_not_against_oneself() -> None:
    shares = Shares()
    group = held(shares, Whose(A, S), 5)
    shares.set_quotas([Share(True, S, 40, 0)])
    assert shares.may_lose(group, 10, NOBODY)
    assert not shares.may_lose(group, 11, Whose(A))
    assert shares.may_lose(group, 50, Whose(B, S))
    groups = np.array([group, group], np.uint32)
    assert not shares.may_lose_all(groups, 10, Whose(A, T))
    assert shares.may_lose_all(groups, 10, alone(SALT_S))
    assert shares.guarded_for(Whose(A, S)) == (SALT_S,)
    shares.set_quotas([])
    assert shares.may_lose_all(groups, 10, NOBODY)


def test_what_was_chosen_to_go_is_no_more_above_a_floor() -> None:
    shares = Shares()
    number = held(shares, Whose(A, S), 3)
    shares.set_quotas([Share(True, S, 20, 0)])
    assert shares.may_lose(number, 10, NOBODY)
    shares.leave(Whose(A, S), 10)
    assert not shares.may_lose(number, 10, NOBODY)
    assert shares.spare_bytes(SPACE_A) == 20
    shares.leave(Whose(A, S), -10)
    assert shares.may_lose(number, 10, NOBODY), "it stays"


def test_a_limit_counts_what_is_being_written() -> None:
    shares = Shares()
    group = held(shares, Whose(A, S), 2)
    shares.set_quotas([Share(True, S, 0, 30), Share(False, A, 0, 1000)])
    taker = Whose(A, S)
    assert shares.over(taker, 10) is None
    shares.reserve(group, 10)
    assert shares.over(taker, 10) == SALT_S
    assert shares.over(Whose(A, T), 10) is None
    shares.reserve(group, -10)
    assert not shares.excess()
    shares.set_quotas([Share(True, S, 0, 19)])
    assert shares.excess() == [SALT_S]


def test_a_name_says_the_namespace() -> None:
    assert whose(A + bytes(NAME_BYTES - 16), S) == Whose(A, S)
    assert alone(SPACE_A) == Whose(A)

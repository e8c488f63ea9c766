"""Which files go first: the oldest of what floors let go, and of one tenant its own oldest."""

from __future__ import annotations

import pytest

from server.core.tiers.parts import Share
from server.tiers.disk import queues as module
from server.tiers.disk.holdings import Value
from server.tiers.disk.queues import Candidate, Queues
from server.tiers.disk.shares import NOBODY, Shares, Tenant, Whose

SPACE, OTHER = b"\x01" * 16, b"\x02" * 16
A, B = b"a" * 16, b"b" * 16
TENANTS: list[Tenant] = [(True, A), (False, OTHER)]


def one(used: int, salt: bytes = b"", space: bytes = SPACE) -> Candidate:
    return Candidate(used, f"/{used}", Value(Whose(space, salt), 4096, 4096))


def shares_of(candidates: list[Candidate], *quotas: Share) -> Shares:
    shares = Shares()
    shares.set_quotas(quotas)
    for candidate in candidates:
        shares.count(shares.number(candidate.value.whose), 1, 4096)
    return shares


def order(queues: Queues, shares: Shares, of: Tenant | None = None) -> list[int]:
    found = []
    while (candidate := queues.take(shares, NOBODY, of)) is not None:
        found.append(candidate.used_ns)
        shares.leave(candidate.value.whose, -4096)
        shares.count(shares.number(candidate.value.whose), -1, -4096)
    return found


def test_the_oldest_of_all_go_first_whoever_they_are() -> None:
    all_of_them = [one(3, A), one(1), one(4, space=OTHER), one(2, A, OTHER)]
    queues = Queues(TENANTS)
    for candidate in all_of_them:
        queues.gather(candidate)
    queues.settle()
    queues.add(one(5))
    assert order(queues, shares_of([*all_of_them, one(5)])) == [1, 2, 3, 4, 5]
    assert queues.is_empty


def test_floors_keep_the_youngest_of_a_tenant() -> None:
    all_of_them = [one(1, A), one(2, A, OTHER), one(3, A), one(4), one(5, space=OTHER)]
    queues = Queues(TENANTS)
    queues.merge(all_of_them)
    floors = Share(True, A, 2 * 4096, 0), Share(False, OTHER, 2 * 4096, 0)
    assert order(queues, shares_of(all_of_them, *floors)) == [1, 4]
    assert not queues.is_empty


def test_a_floor_does_not_hold_against_its_own_tenant() -> None:
    all_of_them = [one(1, A), one(2)]
    queues = Queues(TENANTS)
    queues.merge(all_of_them)
    shares = shares_of(all_of_them, Share(True, A, 4096, 0))
    first = queues.take(shares, Whose(OTHER, A))
    assert first is not None
    assert first.used_ns == 1


def test_of_one_tenant_only_its_own_go() -> None:
    all_of_them = [one(1), one(2, A, OTHER), one(3, space=OTHER), one(4, A)]
    queues = Queues(TENANTS)
    queues.merge(all_of_them)
    shares = shares_of(all_of_them)
    assert order(queues, shares, (True, A)) == [2, 4]
    assert order(queues, shares, (False, OTHER)) == [3]
    assert order(queues, shares, (True, B)) == []


def test_no_more_than_so_many_wait_and_the_oldest_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CANDIDATES", 4)
    queues = Queues(TENANTS)
    for number in (7, 3, 9, 1, 5, 2):
        queues.gather(one(number))
    assert queues.is_cut
    queues.settle()
    queues.add(one(10))
    assert order(queues, shares_of([])) == [1, 2, 3, 5]
    queues = Queues(TENANTS)
    for number in range(8):
        queues.gather(one(number, A if number % 2 else b""))
    queues.settle()
    assert order(queues, shares_of([])) == [0, 1, 2, 3], "two queues have half of it each"


def test_no_more_than_so_many_wait_however_many_tenants_come_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CANDIDATES", 60)
    salts = [bytes([number]) * 16 for number in range(1, 7)]
    queues = Queues([(True, salt) for salt in salts])
    for at, salt in enumerate(salts):
        for number in range(60):
            queues.gather(one(number * 10 + at, salt))
    queues.settle()
    left = order(queues, shares_of([]))
    assert sorted(left) == [number * 10 + at for number in range(10) for at in range(6)]


def test_who_chooses_meanwhile_counts_on_nothing_that_is_going() -> None:
    queues, both = Queues(TENANTS), [one(1, A), one(2, A)]
    shares = shares_of(both, Share(True, A, 4096, 0))
    queues.merge(both)
    first = queues.take(shares, NOBODY)
    assert first == both[0]
    assert queues.take(shares, NOBODY) is None, "it is all that the floor leaves"
    shares.leave(first.value.whose, -4096)  # it could not be removed
    assert queues.take(shares, NOBODY) == both[1]


def test_a_queue_that_knew_no_more_is_worn_when_half_of_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CANDIDATES", 8)
    walked, filled = Queues(TENANTS), Queues(TENANTS)
    for number in range(20):
        walked.gather(one(number))
        filled.add(one(number))
    walked.settle()
    for queues in (walked, filled):
        for number in range(4):
            assert not queues.is_worn
            taken = queues.take(shares_of([]), NOBODY)
            assert taken == one(number)
            queues.add(one(number + 20))
        assert queues.is_worn
    whole = Queues(TENANTS)
    whole.merge(map(one, range(4)))
    assert order(whole, shares_of([])) == list(range(4))
    assert not whole.is_worn, "all that there is was in it"


def test_what_is_used_while_others_are_gathered_waits_where_it_belongs() -> None:
    queues = Queues(TENANTS)
    for number in (1, 4, 6):
        queues.gather(one(number))
    queues.settle()
    queues.merge([one(5), one(2), one(3, A)])
    queues.add(one(7))
    assert order(queues, shares_of([])) == [1, 2, 3, 4, 5, 6, 7]


def test_all_of_a_namespace_can_be_taken_out() -> None:
    queues = Queues(())
    for number in range(4):
        queues.add(one(number, space=(SPACE, OTHER)[number % 2]))
    queues.drop(OTHER)
    assert order(queues, shares_of([])) == [0, 2]


def test_others_tenants_make_other_queues_of_the_same_files() -> None:
    queues = Queues(())
    queues.merge([one(2, space=OTHER), one(1), one(3, A)])
    now = queues.among([(False, OTHER)], frozenset())
    shares = shares_of([])
    assert order(now, shares, (False, OTHER)) == [2]
    rest = now.take(shares, NOBODY), now.take(shares, NOBODY)
    assert [(one.used_ns, one.value.whose.salt) for one in rest if one] == [(1, b""), (3, b"")]

"""The oldest go first, and nobody is brought below its floor however many go together."""

from __future__ import annotations

from random import Random

import pytest

from server.core.tiers.parts import Share
from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import NOBODY, Shares, Tenant, Whose
from server.tiers.disk.victims import LEAST_VICTIMS, Room, choose, may_all_go, oldest

SLOT = 8192
A, B, S = b"a" * 16, b"b" * 16, b"s" * 16


def filled(
    shares: Shares, owners: list[Whose], stamps: list[int], slot_bytes: int = SLOT
) -> Segment:
    segment = Segment(1, slot_bytes, len(owners), -1, True, "")
    for slot, (one, stamp) in enumerate(zip(owners, stamps, strict=True)):
        segment.states[slot], segment.stamps[slot] = State.USED, stamp
        segment.groups[slot] = number = shares.number(one)
        segment.used += 1
        shares.count(number, 1, slot_bytes)
    return segment


def going(segment: Segment, shares: Shares, taker: Whose, span: int = 1, **of: Tenant) -> list[int]:
    victims = may_all_go([segment], Room(span, shares, taker, **of))
    return [victim.slot for victim in victims]


def test_without_floors_everything_may_go_oldest_span_first() -> None:
    shares = Shares()
    segment = filled(shares, [Whose(A)] * 4, [10, 11, 25, 3])
    room = Room(10, shares, NOBODY)
    assert going(segment, shares, NOBODY, span=10) == [3, 1, 0, 2]
    assert [one.slot for one in choose([segment], room)] == [3]
    assert oldest([segment], room) == 3
    assert not choose([], room)
    assert oldest([], room) is None


def test_of_a_tenant_above_its_floor_only_what_is_above_may_go() -> None:
    shares = Shares()
    segment = filled(shares, [Whose(A, S)] * 4 + [Whose(A)] * 2, list(range(6)))
    shares.set_quotas([Share(True, S, 3 * SLOT, 0)])
    assert going(segment, shares, Whose(A)) == [0, 4, 5]
    assert going(segment, shares, Whose(A, S)) == list(range(6))
    assert oldest([segment], Room(1, shares, Whose(A))) == 0
    shares.set_quotas([Share(True, S, 4 * SLOT, 0)])
    assert going(segment, shares, Whose(A)) == [4, 5]
    assert oldest([segment], Room(1, shares, Whose(A))) == 4
    shares.set_quotas([Share(True, S, 40 * SLOT, 0), Share(False, A, 40 * SLOT, 0)])
    assert going(segment, shares, Whose(B)) == []
    assert oldest([segment], Room(1, shares, Whose(B))) is None


def test_who_reads_holds_up_nobody_where_little_may_go() -> None:
    shares = Shares()
    segment = filled(shares, [Whose(A)] * 4, list(range(4)))
    shares.set_quotas([Share(False, A, 3 * SLOT, 0)])
    segment.pins[0] = 1
    assert going(segment, shares, Whose(B)) == [1]


def test_one_tenants_alone() -> None:
    shares = Shares()
    segment = filled(shares, [Whose(A), Whose(A, S), Whose(B, S)], [2, 1, 0])
    assert going(segment, shares, Whose(b"", S), of=(True, S)) == [2, 1]
    shares.set_quotas([Share(False, B, SLOT, 0)])
    assert going(segment, shares, Whose(b"", S), of=(True, S)) == [1]


def test_enough_are_chosen_though_those_that_go_first_are_mostly_kept() -> None:
    shares, count = Shares(), 40 * LEAST_VICTIMS
    old = count - 2 * LEAST_VICTIMS
    owners = [Whose(A, S)] * old + [Whose(A)] * (count - old)
    segment = filled(shares, owners, list(range(count)))
    shares.set_quotas([Share(True, S, (old - 3) * SLOT, 0)])
    chosen = [victim.slot for victim in choose([segment], Room(1, shares, Whose(A)))]
    assert chosen == [0, 1, 2, *range(old, old + LEAST_VICTIMS - 3)]


@pytest.mark.parametrize("seed", range(20))
def test_all_that_may_go_can_go_together_and_is_as_much_as_can_be_found(seed: int) -> None:
    rng, shares = Random(seed), Shares()
    salts = [b"", S, b"t" * 16]
    owners = [Whose(rng.choice([A, B]), rng.choice(salts)) for _ in range(60)]
    segment = filled(shares, owners, rng.sample(range(1000), 60))
    floors = [(False, A), (False, B), (True, S), (True, salts[2])]
    shares.set_quotas(
        [Share(*tenant, rng.randrange(30) * SLOT, 0) for tenant in floors if rng.random() < 0.8]
    )
    taker = rng.choice(owners)
    together = going(segment, shares, taker)
    for slot in together:
        number = int(segment.groups[slot])
        assert shares.may_lose(number, SLOT, taker)
        shares.count(number, -1, -SLOT)
        segment.states[slot] = State.FREE
    if not together:
        assert not any(
            shares.may_lose(int(segment.groups[slot]), SLOT, taker) for slot in range(60)
        )

"""Floors and limits of namespaces and salts: who floods, and who keeps what."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.namespace import fingerprint
from protocol.quotas import MAX_QUOTAS, QuotaChange, QuotaRow, TenantKind
from server.core.config import CoreConfig, TierConfig
from server.core.quotas import holds_any
from server.core.tiers.tiers import Tiers
from tests.server.core.engine import Engine
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace

SALT, OTHER = b"s" * 16, b"t" * 16


def allot(
    engine: Engine, tenant: bytes, floor: int, limit: int = 0, kind: TenantKind = TenantKind.SALT
) -> tuple[QuotaRow, ...]:
    """Sets a quota in pages."""
    change = QuotaChange(
        kind=kind, tenant=tenant, floor_bytes=floor * PAGE, limit_bytes=limit * PAGE
    )
    reply: m.QuotasReply = engine.ask(m.Quotas(change=change))
    return reply.quotas


def space(engine: Engine, floor: int, limit: int = 0) -> tuple[QuotaRow, ...]:
    return allot(engine, fingerprint(engine.space), floor, limit, TenantKind.NAMESPACE)


def flood(engine: Engine, name: str, chains: int, length: int = 8) -> None:
    world = engine.world
    world.check = False  # after each slice that takes most of the time
    for number in range(chains):
        world.step(SECOND)
        engine.save(chain(f"{name}{number}", length))
    world.check = True
    world.core.check_integrity()


def ready(engine: Engine, keys: list[bytes]) -> int:
    """Looked at as an operator does, so that it counts for no use."""
    reply: m.ChunkCountReply = engine.ask(
        m.Inspect(fingerprint=fingerprint(engine.space), keys=b"".join(keys))
    )
    return reply.chunks


def two(extents: int = 8) -> tuple[World, Engine, Engine]:
    """Engines of two namespaces in an arena of 8 pages an extent; every page is a chunk."""
    world = World(config(extents=extents, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("a"))
    b.register(namespace("b"))
    return world, a, b


@pytest.mark.parametrize("floor", [0, 24])
def test_another_namespace_floods_ten_times_the_arena(floor: int) -> None:
    _, a, b = two()
    space(a, floor)
    mine = [chain(f"m{number}", 8) for number in range(3)]
    assert [a.save(keys) for keys in mine] == [8, 8, 8]
    flood(b, "f", 80)
    hits = sum(ready(a, keys) for keys in mine)
    assert hits == 24 if floor else hits < 16


@pytest.mark.parametrize("floor", [0, 24])
def test_another_salt_floods_ten_times_the_arena(floor: int) -> None:
    world = World(config(extents=8, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    a.tenant, b.tenant = SALT, OTHER
    allot(a, SALT, floor)
    mine = [chain(f"m{number}", 8) for number in range(3)]
    assert [a.save(keys) for keys in mine] == [8, 8, 8]
    flood(b, "f", 80)
    assert sum(ready(a, keys) for keys in mine) == (24 if floor else 0)


def test_a_salt_is_safe_from_requests_without_one_and_from_another_namespace() -> None:
    world, a, b = two()
    c = world.engine("c")
    c.register(namespace("a"))
    a.tenant = SALT
    allot(a, SALT, 16)
    mine = [chain(f"m{number}", 8) for number in range(2)]
    assert [a.save(keys) for keys in mine] == [8, 8]
    flood(b, "f", 40)
    flood(c, "g", 40)
    flood(b, "h", 40)
    assert sum(ready(a, keys) for keys in mine) == 16


def test_what_is_above_the_floor_goes_oldest_first() -> None:
    world = World(config(extents=4, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    a.tenant = SALT
    allot(a, SALT, 8)
    mine = [chain(f"m{number}", 8) for number in range(3)]
    for keys in mine:
        world.step(SECOND)
        assert a.save(keys) == 8
    flood(b, "f", 40)
    assert [ready(a, keys) for keys in mine] == [0, 0, 8]
    (row,) = allot(a, SALT, 8)
    assert row.held_bytes == 8 * PAGE


def test_who_has_less_than_its_floor_takes_from_those_above_theirs() -> None:
    _, a, b = two()
    flood(b, "f", 20)
    space(a, 40)
    mine = [chain(f"m{number}", 8) for number in range(5)]
    assert [a.save(keys) for keys in mine] == [8] * 5
    assert sum(ready(a, keys) for keys in mine) == 40
    flood(b, "g", 40)
    assert sum(ready(a, keys) for keys in mine) == 40


def test_a_salt_below_its_floor_does_not_evict_its_own_while_others_have_more() -> None:
    world = World(config(extents=4, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    a.tenant = SALT
    allot(a, SALT, 24)
    mine = [chain(f"m{number}", 8) for number in range(3)]
    assert a.save(mine[0]) == 8  # the oldest of all
    flood(b, "f", 8)
    assert [a.save(keys) for keys in mine[1:]] == [8, 8]
    assert [ready(a, keys) for keys in mine] == [8, 8, 8]


def test_a_namespace_never_takes_more_than_its_limit() -> None:
    world, a, _ = two()
    (row,) = space(a, 0, 24)
    flood(a, "f", 20)
    owner = world.core._state.roster.owners[fingerprint(a.space)]
    assert 8 * PAGE <= owner.held_bytes <= owner.file_bytes <= 24 * PAGE
    assert row.limit_bytes == 24 * PAGE


def test_a_salt_never_takes_more_than_its_limit_and_evicts_its_own() -> None:
    world = World(config(extents=8, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    other = chain("o", 8)
    b.save(other)
    a.tenant = SALT
    allot(a, SALT, 0, 12)
    last = chain("f19", 8)
    flood(a, "f", 20)
    assert ready(a, last) == 8
    assert ready(b, other) == 8
    (row,) = allot(a, SALT, 0, 12)
    assert 8 * PAGE <= row.held_bytes <= 12 * PAGE


def test_a_limit_spent_in_one_namespace_makes_room_there_for_stores_in_another() -> None:
    _, a, b = two()
    a.tenant = b.tenant = SALT
    allot(a, SALT, 0, 12)
    old, new = chain("o", 8), chain("n", 4)
    assert [a.save(old), a.save(new)] == [8, 4]
    mine = chain("m", 8)
    assert b.save(mine) == 8
    assert [ready(a, old), ready(a, new), ready(b, mine)] == [0, 4, 8]
    (row,) = allot(a, SALT, 0, 12)
    assert row.held_bytes == 12 * PAGE


def test_only_salts_with_something_in_a_namespace_have_its_extents_looked_at() -> None:
    world, a, b = two()
    a.tenant = SALT
    allot(a, SALT, 8)
    a.save(chain("a", 8))
    b.save(chain("b", 8))
    quotas, owners = world.core._state.quotas, world.core._state.roster.owners
    mine, other = (owners[fingerprint(one.space)].extents[0][0] for one in (a, b))
    full = quotas.full_salts(mine)
    assert full is not None
    assert full.nonzero()[0].tolist() == [1]
    assert holds_any(mine, full)
    assert quotas.full_salts(other) is None
    assert not holds_any(other, full)
    a.ask(m.Clear())  # what is not swept yet names nodes of an index that is gone
    assert quotas.full_salts(mine) is None


def test_a_prompt_longer_than_its_salts_limit_is_stored_as_far_as_that_goes() -> None:
    world = World(config(extents=8, slots=8))
    a = world.engine("a")
    a.register(namespace())
    a.tenant = SALT
    allot(a, SALT, 0, 5)
    reply = a.store(chain("x", 8))
    assert (reply.copied, reply.stop) == (5, m.StopReason.NO_ROOM)


def test_a_chunk_counts_once_for_who_stored_it_first_and_until_it_goes() -> None:
    world = World(config(extents=8, slots=8))
    a = world.engine("a")
    a.register(namespace())
    a.tenant = SALT
    allot(a, SALT, 1)
    keys = chain("x", 8)
    assert a.save(keys[:4]) == 4
    a.tenant = b""
    assert a.save(keys) == 8
    assert [row.held_bytes for row in allot(a, SALT, 1)] == [4 * PAGE]
    a.ask(m.Delete(fingerprint=fingerprint(a.space), keys=keys[2]))
    assert [row.held_bytes for row in allot(a, SALT, 1)] == [2 * PAGE]
    a.ask(m.Clear())
    assert [row.held_bytes for row in allot(a, SALT, 1)] == [0]


def test_floors_together_fit_the_arena_and_a_limit_is_no_less_than_its_floor() -> None:
    world, a, _ = two()
    arena = world.config.arena_bytes // PAGE
    space(a, arena - 10)
    with pytest.raises(ReplyError, match="INVALID_ARGUMENT") as refused:
        allot(a, SALT, 11)
    assert refused.value.detail["left_bytes"] == 10 * PAGE
    allot(a, SALT, 10)
    allot(a, SALT, 9)  # the old one counts no more
    with pytest.raises(ReplyError, match="below the floor"):
        allot(a, SALT, 5, 4)
    assert [row.floor_bytes for row in space(a, 1)] == [PAGE, 9 * PAGE]


def test_zeros_are_nobodys_and_have_no_quota() -> None:
    _, a, _ = two()
    for floor in (1, 0):
        with pytest.raises(ReplyError, match="INVALID_ARGUMENT"):
            allot(a, bytes(16), floor)
    assert a.ask(m.Quotas()).quotas == ()


def test_both_sizes_0_take_a_quota_back() -> None:
    _, a, _ = two()
    space(a, 3)
    allot(a, SALT, 3)
    assert [row.kind for row in space(a, 0)] == [TenantKind.SALT]
    assert allot(a, SALT, 0) == ()
    assert allot(a, OTHER, 0) == ()


def test_a_namespaces_bytes_in_tiers_that_count_are_told() -> None:
    world, a, b = two()
    space(a, 3)
    allot(a, SALT, 3)
    state = world.core._state
    tiers = Tiers(
        CoreConfig(
            arena_bytes=PAGE, extent_bytes=PAGE, tiers=(TierConfig("disk"), TierConfig("valkey"))
        ),
        state.timers,
        state.outbox,
    )
    disk, _ = tiers.tiers
    disk.shares = {fingerprint(a.space): 5, fingerprint(b.space): 6}
    disk.salts = {SALT: 7}
    of_space, of_salt = state.quotas.rows(state.roster.owners, tiers.tiers)
    assert of_space.tier_bytes == {"disk": 5}
    assert of_salt.tier_bytes == {"disk": 7}


def test_there_is_a_most_of_quotas() -> None:
    _, a, _ = two()
    for number in range(1, MAX_QUOTAS):
        allot(a, number.to_bytes(16, "big"), 0, 1)
    assert len(allot(a, OTHER, 0, 1)) == MAX_QUOTAS
    assert a.error(
        m.Quotas(change=QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=1))
    ) is (ErrorCode.LIMIT_EXCEEDED)


def test_a_registration_that_a_limit_leaves_no_room_is_told_so() -> None:
    world, a, _ = two()
    space_of = namespace("c")
    allot(a, fingerprint(space_of), 0, 1, TenantKind.NAMESPACE)
    with pytest.raises(ReplyError, match=r"limit of 4096 bytes"):
        world.engine("c").register(space_of)

"""Quotas at work: who is above a new limit is brought down, and what was kept counts again."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import RequestError
from protocol.namespace import fingerprint
from protocol.quotas import QuotaChange, TenantKind
from tests.server.core.test_quotas import OTHER, SALT, allot, ready, space, two
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace


def salt_change(tenant: bytes, floor: int, limit: int = 0) -> QuotaChange:
    return QuotaChange(
        kind=TenantKind.SALT, tenant=tenant, floor_bytes=floor * PAGE, limit_bytes=limit * PAGE
    )


def test_a_namespace_above_its_new_limit_loses_its_oldest_extents() -> None:
    world, a, b = two()
    mine = [chain(f"m{number}", 8) for number in range(5)]
    for keys in mine:
        world.step(SECOND)
        assert a.save(keys) == 8
    other = chain("o", 8)
    b.save(other)
    space(a, 0, 20)
    world.pump()
    owner = world.core._state.roster.owners[fingerprint(a.space)]
    assert owner.file_bytes <= 20 * PAGE
    assert [ready(a, keys) for keys in mine[:3]] == [0, 0, 0]
    assert ready(a, mine[4]) == 8
    assert ready(b, other) == 8


def test_a_namespaces_own_floor_is_no_help_against_its_limit() -> None:
    world, a, _ = two()
    mine = [chain(f"m{number}", 8) for number in range(5)]
    for keys in mine:
        world.step(SECOND)
        assert a.save(keys) == 8
    for keys in mine:  # half of each extent goes: 20 pages are held in 50 of files
        a.ask(m.Delete(fingerprint=fingerprint(a.space), keys=keys[4]))
    space(a, 18, 18)
    world.pump()
    owner = world.core._state.roster.owners[fingerprint(a.space)]
    assert owner.file_bytes <= 18 * PAGE


def test_what_a_salts_floor_keeps_of_a_namespace_above_its_limit_is_not_begun_with() -> None:
    world, a, _ = two()
    a.tenant = SALT
    allot(a, SALT, 16)
    mine = [chain(f"m{number}", 8) for number in range(2)]
    assert [a.save(keys) for keys in mine] == [8, 8]
    a.tenant = b""
    others = [chain(f"o{number}", 8) for number in range(3)]
    for keys in others:
        world.step(SECOND)
        assert a.save(keys) == 8
    space(a, 0, 30)
    world.pump()
    assert [ready(a, keys) for keys in (*mine, *others)] == [8, 8, 0, 0, 8]
    owner = world.core._state.roster.owners[fingerprint(a.space)]
    assert not any(extent.not_before_ns for extent in owner.extents[0])


def test_a_salt_above_its_new_limit_loses_its_own_oldest_chunks() -> None:
    world = World(config(extents=8, slots=8))
    a = world.engine("a")
    a.register(namespace())
    old = chain("o", 8)
    a.save(old)
    a.tenant = SALT
    allot(a, SALT, 1)
    mine = [chain(f"m{number}", 8) for number in range(3)]
    for keys in mine:
        world.step(SECOND)
        a.save(keys)
    allot(a, SALT, 1, 10)
    world.pump()
    assert [ready(a, keys) for keys in (old, *mine)] == [8, 0, 2, 8]


def test_what_is_read_is_looked_at_again() -> None:
    world = World(config(extents=8, slots=8))
    a = world.engine("a")
    a.register(namespace())
    a.tenant = SALT
    allot(a, SALT, 1)
    keys = chain("m", 8)
    a.save(keys)
    lease = a.lookup(keys).lease
    allot(a, SALT, 1, 2)
    world.pump()
    assert ready(a, keys) == 8
    a.release(lease)
    a.end()
    world.step(2 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    assert ready(a, keys) == 2


def test_the_settings_hold_before_what_was_kept() -> None:
    world = World(config(extents=4, slots=8))
    arena = world.config.arena_bytes // PAGE
    wanted = [salt_change(SALT, 3)]
    kept = [salt_change(SALT, 9), salt_change(OTHER, arena), salt_change(b"u" * 16, arena - 3)]
    refused = world.core.allot(wanted, kept)
    assert len(refused) == 1
    assert OTHER.hex() in refused[0]
    a = world.engine("a")
    rows = {row.tenant: row.floor_bytes // PAGE for row in a.ask(m.Quotas()).quotas}
    assert rows == {SALT: 3, b"u" * 16: arena - 3}
    with pytest.raises(RequestError, match="are left"):
        world.core.allot([salt_change(OTHER, arena)], [])


def test_a_namespace_that_goes_meanwhile_ends_no_enforcement() -> None:
    world = World(config(extents=48, slots=64))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("a"))
    b.register(namespace("b"))
    a.tenant = b.tenant = SALT
    allot(a, SALT, 0, 2500)
    world.check = False  # after each slice that takes most of the time
    for number in range(30):
        a.save(chain(f"a{number}", 60))
    b.save(chain("b", 60))
    b.die()
    state = world.core._state
    state.allotment.change(salt_change(SALT, 0, 10))
    for _ in range(3):
        world.core.work(world.now_ns)
    state.operations.retire(state.roster.owners[fingerprint(b.space)])
    world.pump()  # raises what the server noted as a fault of its own
    assert fingerprint(b.space) not in state.roster.owners
    assert state.accounts.by_number[1].held_bytes == 10 * PAGE

"""Accounts: what salts hold is counted exactly, over restarts too."""

from __future__ import annotations

import pytest

from protocol.errors import RequestError
from protocol.namespace import LayerGroup
from server.core.accounts import COMMON, MAX_ACCOUNTS, Accounts
from tests.server.core.engine import Engine
from tests.server.core.reborn import heritage, kill
from tests.server.core.test_quotas import OTHER, SALT, allot
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace


def held(engine: Engine) -> dict[bytes, int]:
    accounts = engine.world.core._state.accounts
    return {one.tenant: one.held_bytes // PAGE for one in accounts.by_number.values()}


def test_a_number_stays_a_salts_and_there_are_255() -> None:
    accounts = Accounts()
    assert accounts.number(SALT) == accounts.number(b"") == COMMON
    first = accounts.open(SALT)
    assert accounts.open(SALT) is first
    assert accounts.number(SALT) == first.number == 1
    for number in range(MAX_ACCOUNTS - 1):
        accounts.open(number.to_bytes(16, "big"))
    assert max(accounts.by_number) == MAX_ACCOUNTS
    with pytest.raises(RequestError, match="LIMIT_EXCEEDED"):
        accounts.open(OTHER)


def test_every_shard_counts_and_each_with_its_own_size() -> None:
    world = World(config(extents=16, slots=8))
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=2 * PAGE),
    )
    a = world.engine("a")
    a.register(namespace(groups=groups))
    a.tenant = SALT
    allot(a, SALT, 1)
    keys = chain("x", 4)
    a.save(keys, shard=0)
    assert held(a) == {SALT: 4}
    a.save(keys[:3], shard=1)
    assert held(a) == {SALT: 10}


def test_what_was_reserved_and_is_not_committed_counts_for_nobody() -> None:
    world = World(config(extents=4, slots=8))
    a = world.engine("a")
    a.register(namespace())
    a.tenant = SALT
    allot(a, SALT, 1)
    reply = a.store(chain("x", 5))
    (account,) = world.core._state.accounts.by_number.values()
    assert (account.held_bytes, account.reserved_bytes) == (0, 5 * PAGE)
    a.commit(a.last_store, reply.copied - 2)
    assert (account.held_bytes, account.reserved_bytes) == (3 * PAGE, 0)
    a.store(chain("y", 5))
    assert account.reserved_bytes == 5 * PAGE
    a.die()
    world.step(SECOND)
    world.pump()
    assert (account.held_bytes, account.reserved_bytes) == (3 * PAGE, 0)


def test_the_next_server_counts_what_it_finds_for_the_same_salts() -> None:
    old = World(config(extents=8, slots=8))
    a = old.engine("a")
    a.register(namespace())
    for tenant, name, count in ((SALT, "s", 7), (OTHER, "o", 5), (b"", "n", 3)):
        a.tenant = tenant
        a.save(chain(name, count))
    allot(a, SALT, 2, 9)
    kept = old.core._state.quotas.changes()
    kill(old)
    world = World(
        old.config,
        now_ns=old.now_ns,
        extents=old.extents,
        namespaces=old.namespaces,
        strangers=old.strangers,
    )
    assert world.core.allot([], kept) == []
    world.core.adopt(heritage(old), world.now_ns)
    world.pump()
    # It was stored before the salt had its first quota: the records know whose it is.
    assert held(world.engine("b")) == {SALT: 7}
    assert world.core._state.quotas.changes() == kept

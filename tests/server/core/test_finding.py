"""The core looks at records a stretch at a time, and ignores what nobody waits for."""

from __future__ import annotations

import numpy as np

from protocol import messages as m
from server.core import effects as fx
from server.core import saltdeletion
from tests.server.core.world import World, chain, config, namespace

SALT = b"s" * 16


def test_every_slot_is_looked_at_once_in_stretches() -> None:
    world = World(config(extents=2, slots=10))
    engine = world.engine()
    engine.register(namespace())
    engine.tenant = SALT
    engine.save(chain("x", 12))
    most, saltdeletion.FIND_SLOTS = saltdeletion.FIND_SLOTS, 4
    try:
        assert engine.ask(m.DeleteSalt(tenant=SALT, look=True)).chunks == 12
    finally:
        saltdeletion.FIND_SLOTS = most
    looks = [one for one in world.log if isinstance(one, fx.FindSalt)]
    seen = [(one.extent, slot) for one in looks for slot in range(one.begin, one.end)]
    slots = [
        (n, slot) for n, shadow in world.extents.items() for slot in range(len(shadow.records))
    ]
    assert sorted(seen) == sorted(slots)
    assert max(one.end - one.begin for one in looks) == 4


def test_an_answer_that_nobody_waits_for_is_nothing() -> None:
    world = World(config())
    world.core.salt_found(99, np.zeros(1, np.int64), np.ones(1, np.int64), world.now_ns)
    assert not world.core.take_effects()

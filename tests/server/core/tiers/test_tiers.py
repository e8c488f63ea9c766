"""All tiers together: order, whose answer it is, and namespaces that are to be forgotten."""

from __future__ import annotations

import numpy as np

from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers.parts import PART_DTYPE, Status
from server.core.tiers.tiers import asked
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import SECOND, World, chain, config, namespace


def test_a_server_without_tiers_has_none_and_ignores_what_comes() -> None:
    world = World(config())
    core = world.core
    core.porter_ready(fx.TierId(0), 0, 0, SECOND)
    core.porter_refused(fx.TierId(0), SECOND)
    core.porter_said(fx.TierId(0), "it is cold", SECOND)
    core.porter_lost(fx.TierId(0), SECOND)
    core.porter_stuck(fx.TierId(0), 1, SECOND)
    core.porter_gone(fx.TierId(0), 1, SECOND)
    core.tier_done(fx.JobId(1), b"", SECOND)
    core.tier_probed(fx.JobId(1), 1, SECOND)
    core.tier_health(fx.JobId(1), True, 0, 0, SECOND)
    assert not core.take_effects()
    assert not any(name.startswith("tier_") for name in core.stats())


def test_readable_ones_are_in_order_and_without_those_that_are_down_or_to_forget() -> None:
    world = TierWorld(tiered(TierConfig("a"), TierConfig("b"), TierConfig("c")), auto_tiers=False)
    state = world.core._state
    assert not state.tiers.readable()
    for number in (2, 0, 1):
        world.up(number)
    assert [tier.name for tier in state.tiers.readable()] == ["a", "b", "c"]
    world.down(1)
    engine = world.engine()
    engine.register(namespace())
    (owner,) = state.roster.owners.values()
    state.forgetting.delete(owner, b"k" * 16)
    assert [tier.name for tier in state.tiers.readable(owner.fingerprint)] == []
    assert [tier.name for tier in state.tiers.readable()] == ["a", "c"]


def test_answers_find_their_tier_and_barred_namespaces_end_at_once() -> None:
    world = TierWorld(tiered(TierConfig("a"), TierConfig("b")), auto_tiers=False)
    world.up(0)
    world.up(1)
    engine = world.engine()
    engine.register(namespace())
    state = world.core._state
    (owner,) = state.roster.owners.values()
    seen: list[object] = []
    parts = np.zeros(2, PART_DTYPE)
    first, second = state.tiers.tiers
    state.tiers.probe(first, owner, b"k" * 16, seen.append)
    state.tiers.get(second, owner, parts, 8, seen.append)
    world.core.tier_probed(fx.JobId(1), 1, world.now_ns)
    world.core.tier_done(fx.JobId(2), b"\0\0", world.now_ns)
    assert seen == [1, b"\0\0"]
    state.tiers.probe(first, owner, b"k" * 16, seen.append)
    world.core.tier_probed(fx.JobId(3), None, world.now_ns)
    assert seen[2:] == [None]
    state.forgetting.clear(owner)
    errors = bytes([Status.ERROR]) * 2
    state.tiers.probe(first, owner, b"k" * 16, seen.append)
    state.tiers.get(first, owner, parts, 8, seen.append)
    state.tiers.put(first, owner, parts, 8, seen.append)
    assert seen[3:] == [0, errors, errors]


def test_figures_of_a_tier() -> None:
    world = TierWorld(tiered(TierConfig("disk")))
    world.core.porter_ready(fx.TierId(0), 3, 7, world.now_ns)
    world.tiers[0].is_up = True
    engine = world.engine()
    engine.register(namespace())
    engine.save(chain("x", 3))
    stats = world.core.stats()
    assert (stats["tier_disk_up"], stats["tier_disk_capacity_bytes"]) == (1, 7)
    assert stats["tier_disk_put_bytes"] == 3 * 4096


def test_a_namespace_with_windows_is_asked_for_a_group_of_full_attention() -> None:
    assert asked((True, True)) == (0, 2)
    assert asked((False, False, True, True, False, True)) == (2, 2)
    assert asked((True, False)) == (0, 1)
    assert asked((False, False)) == (0, 2)


def test_what_moves_is_one_tiers_own() -> None:
    world = TierWorld(tiered(TierConfig("a"), TierConfig("b")), auto_tiers=False)
    world.up(0)
    world.up(1)
    world.engine().register(namespace())
    state = world.core._state
    (owner,) = state.roster.owners.values()
    for tier in state.tiers.tiers:
        state.tiers.get(tier, owner, np.zeros(1, PART_DTYPE), 8, lambda statuses: None)
    world.core.take_effects()  # nobody performs them
    for _ in range(3):
        world.wait(SECOND)
        world.core.tier_moves(fx.TierId(0), world.now_ns)
        world.core.tier_moves(fx.TierId(7), world.now_ns)
    assert [tier.name for tier in state.tiers.readable()] == ["a"]

"""One extent: what it costs, and how old what it holds is."""

from __future__ import annotations

import pytest

from server.core.extents import Extent
from tests.server.core.world import World, config, namespace


def extent() -> Extent:
    world = World(config(extents=2, slots=8))
    world.engine().register(namespace())
    (only,) = world.core._state.arena.extents.values()
    return only


def test_it_costs_its_whole_file() -> None:
    one = extent()
    assert one.file_bytes == one.geometry.file_bytes > 8 * one.geometry.payload_bytes
    assert one.extent == one.geometry.extent == 1


def test_what_it_holds_is_counted_for_its_namespace_too() -> None:
    one = extent()
    size, owner = one.geometry.slot_bytes, one.owner
    one.add_reserved(5)
    one.add_held(3)
    one.add_reserved(-3)
    assert (one.num_held, one.num_reserved) == (3, 2)
    assert (owner.held_bytes, owner.reserved_bytes) == (3 * size, 2 * size)
    assert owner.taken_bytes == 5 * size
    assert owner.file_bytes == one.file_bytes
    owner.remove_extent(one)
    assert (owner.file_bytes, owner.extents) == (0, [[]])


@pytest.mark.parametrize(("held", "used", "share"), [(8, 8, 1.0), (8, 2, 0.25), (0, 1, 1.0)])
def test_the_mean_time_of_use_moves_by_the_share_that_was_used(
    held: int, used: int, share: float
) -> None:
    one = extent()
    one.num_held, one.used_us = held, 100.0
    one.note_use(used, 300)
    assert one.used_us == pytest.approx(100.0 + share * 200.0)

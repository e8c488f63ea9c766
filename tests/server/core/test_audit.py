"""The self-check sees planted contradictions; a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.core.effects import HOST_COPIER
from server.core.integrity import IntegrityError
from server.core.state import State
from tests.server.core.world import World, chain, config, namespace


def world_with_everything() -> World:
    world = World(config(extents=8, slots=8), auto_copies=True)
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 10)
    a.save(keys)
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 5)
    a.store(chain("y", 3))
    b = world.engine("b")
    b.device = b"d" * 16
    b.register(namespace())
    world.core.check_integrity()
    return world


def _pin(state: State) -> None:
    state.slots.pins[state.slots.pins > 0] += 1


def _lock(state: State) -> None:
    owner = next(iter(state.roster.owners.values()))
    owner.index.locks[owner.index.nodes()[0]] += 1


def _budget(state: State) -> None:
    state.growth.used_bytes += 1


def _free_list(state: State) -> None:
    next(iter(state.arena.extents.values())).free.append(0)


def _held(state: State) -> None:
    next(iter(state.arena.extents.values())).num_held += 1


def _owner_held(state: State) -> None:
    next(iter(state.roster.owners.values())).held_bytes += 1


def _owner_reserved(state: State) -> None:
    next(iter(state.roster.owners.values())).reserved_bytes += 1


def _owner_files(state: State) -> None:
    next(iter(state.roster.owners.values())).file_bytes += 1


def _missing(state: State) -> None:
    owner = next(iter(state.roster.owners.values()))
    owner.index.missing[owner.index.nodes()[0]] += 1


def _reserved(state: State) -> None:
    state.reservations.by_slot.popitem()


def _unmapped(state: State) -> None:
    extent = next(iter(state.arena.extents))
    next(iter(state.roster.instances.values())).unmapped[extent] = 1


def _leased(state: State) -> None:
    next(iter(state.roster.instances.values())).num_leased_slots += 1


def _generation(state: State) -> None:
    state.slots.generation[state.slots.generation > 0] = 1


def _state(state: State) -> None:
    owner = next(iter(state.roster.owners.values()))
    state.slots.state_of[owner.index.cell(owner.index.nodes()[0], 0)] = 0


def _sessions_of_a_copier(state: State) -> None:
    next(iter(state.copiers.devices.values())).num_sessions += 1


def _copier_that_leaves(state: State) -> None:
    next(iter(state.copiers.devices.values())).is_leaving = True


def _wrong_copier(state: State) -> None:
    next(iter(state.copiers.devices.values())).device_uuid = b"?" * 16


def _copier_down(state: State) -> None:
    state.copiers.windows[HOST_COPIER].is_up = False


@pytest.mark.parametrize(
    "spoil",
    [
        _sessions_of_a_copier,
        _copier_that_leaves,
        _wrong_copier,
        _copier_down,
        _pin,
        _lock,
        _budget,
        _free_list,
        _held,
        _owner_held,
        _owner_reserved,
        _owner_files,
        _missing,
        _reserved,
        _unmapped,
        _leased,
        _generation,
        _state,
    ],
)
def test_each_contradiction_is_found(spoil: Callable[[State], None]) -> None:
    world = world_with_everything()
    spoil(world.core._state)
    with pytest.raises(IntegrityError):
        world.core.check_integrity()

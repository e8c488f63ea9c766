"""A STORE's own small facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.core.stores import Stage, StorePlan
from tests.server.core.world import World, chain, config, namespace


def plan_of(length: int) -> tuple[World, StorePlan]:
    world = World(config(extents=2, slots=64), auto_copies=False, check=False)
    a = world.engine()
    a.register(namespace())
    a.send(a.store_body(chain("x", length)))
    world.pump()
    (session,) = world.core._state.roster.sessions.values()
    (plan,) = session.stores.values()
    return world, plan


@given(st.integers(1, 40), st.integers(0, 45), st.integers(0, 45))
def test_keys_are_cut_at_the_end(length: int, first: int, count: int) -> None:
    _, plan = plan_of(length)
    assert plan.num_chunks == length
    assert plan.some_keys(first, count) == chain("x", length)[first : first + count]
    assert plan.key(0) == chain("x", 1)[0]


def test_a_replaced_index_means_cleared() -> None:
    world, plan = plan_of(3)
    assert plan.stage is Stage.COPYING
    assert not plan.is_cleared
    world.core._state.roster.renew_index(plan.owner)
    assert plan.is_cleared

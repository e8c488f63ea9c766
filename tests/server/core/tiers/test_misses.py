"""Why chunks are not there: the reason of the first one lacking, for all of them."""

from __future__ import annotations

from server.core.tiers.misses import Miss
from tests.server.core.world import World, chain, config, namespace


def test_cold_evicted_incomplete_and_what_a_promotion_failed_of() -> None:
    world = World(config(extents=4, slots=8))
    space = namespace("tp", ranks=2)
    a, b = world.engine(), world.engine(rank=1)
    a.register(space)
    b.register(space)
    state = world.core._state
    (owner,) = state.roster.owners.values()
    seen: list[tuple[str, int]] = []

    def note(keys: list[bytes], ready: int, why: Miss | None = None) -> None:
        before = dict(state.outbox.counters)
        state.misses.note(owner, b"".join(keys), ready, why)
        for name, value in state.outbox.counters.items():
            if name.startswith("miss_") and value != before.get(name, 0):
                seen.append((name, value - before.get(name, 0)))

    x = chain("x", 2)
    a.save(x)
    note(x, 0)
    b.save(x)
    note(x, 2)
    note([*x, *chain("y", 5)[2:]], 2)
    note(x, 1, Miss.DEADLINE)
    assert seen == [
        ("miss_chunks_incomplete", 2),
        ("miss_chunks_cold", 3),
        ("miss_chunks_deadline", 1),
    ]


def test_evicted() -> None:
    world = World(config(extents=1, slots=4))
    a = world.engine()
    a.register(namespace())
    a.save(chain("x", 4))
    a.save(chain("y", 4))
    state = world.core._state
    (owner,) = state.roster.owners.values()
    state.misses.note(owner, b"".join(chain("x", 4)), 0)
    assert world.core.stats()["miss_chunks_evicted"] == 4

"""Counters and gauges of STATS count what happened (B52)."""

from __future__ import annotations

from protocol import messages as m
from tests.server.core.world import World, chain, config, namespace


def test_b52_asked_hit_and_retrieved_are_counted_apart() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 10)
    a.save(keys[:6])
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 4)
    a.lookup(chain("y", 5), request=2)
    stats = a.ask(m.Stats()).values
    assert stats["lookup_chunks"] == 15
    assert stats["hit_chunks"] == 6
    assert stats["retrieved_chunks"] == 4
    assert stats["published_chunks"] == stats["stored_chunks"] == stats["slots_held"] == 6
    assert stats["pinned_slots"] == 4
    assert stats["copied_bytes"] == 6 * 4096
    assert all(isinstance(value, int) and value >= 0 for value in stats.values())


def test_faults_are_kept_bounded() -> None:
    state = World(config()).core._state
    for _ in range(100):
        state.fault(ValueError("a bug"))
    assert len(state.faults) == 16
    assert state.outbox.counters["internal_errors"] == 100

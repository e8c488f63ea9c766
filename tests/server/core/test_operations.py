"""CLEAR, DELETE, INSPECT, PIN, UNPIN through the core's face."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.namespace import fingerprint
from server.core import effects as fx
from tests.server.core.world import SECOND, Engine, World, chain, config, namespace

NAME = fingerprint(namespace())


def engine(world: World) -> Engine:
    made = world.engine()
    made.register(namespace())
    return made


def test_clear_voids_records_and_frees_slots() -> None:
    world = World(config())
    a = engine(world)
    keys = chain("x", 20)
    a.save(keys)
    assert a.ask(m.Clear(fingerprint=NAME)).chunks == 20
    assert a.lookup(keys).ready == 0
    assert all(row is None for shadow in world.extents.values() for row in shadow.records)
    assert world.core.stats()["slots_held"] == 0
    assert a.save(keys) == 20


def test_a_forgotten_slot_keeps_its_generation_while_read_and_loses_it_when_reused() -> None:
    world = World(config(extents=1, slots=4))
    a = engine(world)
    a.save(chain("x", 4))
    found = a.lookup(chain("x", 2))
    a.retrieve(chain("x", 2), found.lease, 0, 2)
    a.ask(m.Clear(fingerprint=NAME))
    world.check_claims()  # the readers of two forgotten slots find the generations they were told
    voids = [effect for effect in world.log if isinstance(effect, fx.VoidRecords)]
    assert [effect.reused for effect in voids] == [False]
    a.release(found.lease)
    assert a.save(chain("y", 4)) == 4
    voids = [effect for effect in world.log if isinstance(effect, fx.VoidRecords)][1:]
    assert all(effect.reused for effect in voids)
    assert sorted(slot for effect in voids for slot in effect.slots.tolist()) == [0, 1, 2, 3]


def test_clear_of_one_namespace_spares_the_others() -> None:
    world = World(config())
    a, b = engine(world), world.engine("b")
    b.register(namespace("other"))
    keys = chain("x", 5)
    a.save(keys)
    b.save(keys)
    assert a.ask(m.Clear(fingerprint=fingerprint(namespace("other")))).chunks == 5
    assert (a.lookup(keys).ready, b.lookup(keys).ready) == (5, 0)
    assert a.error(m.Clear(fingerprint=b"?" * 16)) is ErrorCode.UNKNOWN_NAMESPACE


def test_clear_gives_back_what_a_namespace_without_engines_had() -> None:
    world = World(config())
    a, b = engine(world), world.engine("b")
    b.register(namespace("other"))
    b.save(chain("x", 20))
    b.die()
    used = world.core.stats()["arena_used_bytes"]
    a.ask(m.Clear())
    stats = world.core.stats()
    assert stats["arena_used_bytes"] < used
    assert stats["namespaces"] == 1
    assert any(isinstance(effect, fx.RemoveExtent) for effect in world.log)


def test_delete_takes_a_chunk_and_what_continues_it() -> None:
    world = World(config())
    a = engine(world)
    trunk = chain("x", 10)
    branch = trunk[:5] + chain("y", 10)[5:]
    a.save(trunk)
    a.save(branch)
    assert a.ask(m.Delete(fingerprint=NAME, keys=trunk[7])).chunks == 3
    assert a.lookup(trunk).ready == 7
    assert a.lookup(branch).ready == 10
    assert a.ask(m.Delete(fingerprint=NAME, keys=trunk[2])).chunks == 10
    assert a.lookup(branch).ready == 2
    assert a.ask(m.Delete(fingerprint=NAME, keys=trunk[2])).chunks == 0


def test_delete_of_thousands_comes_in_slices() -> None:
    world = World(config(extents=2, slots=3000), check=False)
    a = world.engine(pages=3000)
    a.register(namespace())
    keys = chain("x", 3000)
    a.save(keys)
    seq = a.send(m.Delete(fingerprint=NAME, keys=keys[0]))
    slices = 0
    while seq not in a.replies:
        world.core.work(world.now_ns)
        slices += 1
        for effect in world.core.take_effects():
            world.perform(effect)
        if slices % 10 == 0:
            world.core.check_integrity()
    assert a.answer(seq).chunks == 3000
    assert slices > 20


def test_inspect_counts_without_leasing() -> None:
    world = World(config())
    a = engine(world)
    keys = chain("x", 6)
    a.save(keys)
    asked = m.Inspect(fingerprint=NAME, keys=b"".join(chain("x", 9)))
    assert a.ask(asked).chunks == 6
    assert world.core.stats()["leases"] == 0
    assert a.error(m.Inspect(fingerprint=NAME, keys=b"x" * 17)) is ErrorCode.COUNT_MISMATCH


def test_a_pin_bars_eviction_until_its_time_is_over() -> None:
    world = World(config(extents=2, slots=8))
    a = engine(world)
    keys = chain("x", 6)
    blob = b"".join(keys)
    a.save(keys)
    assert a.ask(m.Pin(fingerprint=NAME, keys=blob, ttl_s=60)).chunks == 6
    for number in range(8):
        a.save(chain(f"other{number}", 8))
    assert a.ask(m.Inspect(fingerprint=NAME, keys=blob)).chunks == 6
    world.step(61 * SECOND)
    world.core.tick(world.now_ns)
    for number in range(8, 16):
        a.save(chain(f"other{number}", 8))
    assert a.ask(m.Inspect(fingerprint=NAME, keys=blob)).chunks < 6


def test_unpin_is_idempotent_and_pins_are_bounded() -> None:
    world = World(config(max_pins=2))
    a = engine(world)
    names = [chain(name, 2) for name in ("x", "y", "z")]
    for keys in names:
        a.save(keys)
    pins = [m.Pin(fingerprint=NAME, keys=b"".join(keys), ttl_s=60) for keys in names]
    a.ask(pins[0])
    a.ask(pins[0])
    a.ask(pins[1])
    assert world.core.stats()["pinned_prefixes"] == 2
    assert a.error(pins[2]) is ErrorCode.LIMIT_EXCEEDED
    unpin = m.Unpin(fingerprint=NAME, keys=b"".join(names[0]))
    assert a.ask(unpin).chunks == 2
    assert a.ask(unpin).chunks == 0
    assert a.ask(pins[2]).chunks == 2
    a.ask(m.Clear())
    assert a.ask(m.Unpin(fingerprint=NAME, keys=b"".join(names[1]))).chunks == 2
    world.core.check_integrity()

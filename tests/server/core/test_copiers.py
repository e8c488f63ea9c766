"""Copiers of devices: started with the first pool, ended after the last, each on its own."""

from __future__ import annotations

from typing import TypeVar

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from server.core import effects as fx
from server.core.copiers import IDLE_NS, MAX_DEVICES, START_NS, STARTS_AT_ONCE
from tests.server.core.world import SECOND, Engine, World, chain, config, namespace

T = TypeVar("T", bound=fx.Effect)
FIRST, SECOND_DEVICE = b"1" * 16, b"2" * 16


def on_device(world: World, name: str, device: bytes = FIRST) -> Engine:
    engine = world.engine(name)
    engine.device = device
    return engine


def effects(world: World, kind: type[T]) -> list[T]:
    return [effect for effect in world.log if isinstance(effect, kind)]


def pending(world: World, kind: type[T]) -> list[T]:
    return [effect for effect in world.pending if isinstance(effect, kind)]


def pass_idle_time(world: World) -> None:
    world.step(IDLE_NS)
    world.core.tick(world.now_ns)
    world.pump()


def test_a_device_has_one_copier_with_its_first_pool_and_until_a_while_after_its_last() -> None:
    world = World(config())
    a, b = on_device(world, "a"), on_device(world, "b")
    a.register(namespace())
    b.register(namespace())
    assert effects(world, fx.StartCopier) == [fx.StartCopier(fx.CopierId(1), FIRST)]
    opened = effects(world, fx.OpenPool)
    assert [(one.copier, one.pool) for one in opened] == [(1, None), (1, None)]
    assert [one.memory for one in opened] == [
        one.register_body(namespace()).memory for one in (a, b)
    ]
    keys = chain("x", 4)
    assert a.save(keys) == 4
    assert b.lookup(keys).ready == 4
    assert world.core.stats()["device_copiers"] == 1
    assert a.ask(a.unregister_body()) == m.Done()
    pass_idle_time(world)
    assert not effects(world, fx.StopCopier)
    b.die()
    world.step(IDLE_NS - 1)
    world.core.tick(world.now_ns)
    world.pump()
    assert not effects(world, fx.StopCopier)
    world.step(1)
    world.core.tick(world.now_ns)
    world.pump()
    assert effects(world, fx.StopCopier) == [fx.StopCopier(fx.CopierId(1))]
    assert world.core.stats()["device_copiers"] == 0
    c = on_device(world, "c")
    c.register(namespace())
    assert effects(world, fx.StartCopier)[1] == fx.StartCopier(fx.CopierId(2), FIRST)
    assert c.lookup(keys).ready == 4


def test_who_comes_while_a_copier_waits_to_end_keeps_it() -> None:
    world = World(config())
    a = on_device(world, "a")
    a.register(namespace())
    a.die()
    world.step(IDLE_NS // 2)
    b = on_device(world, "b")
    b.register(namespace())
    pass_idle_time(world)
    assert not effects(world, fx.StopCopier)
    assert b.save(chain("x", 2)) == 2


def test_who_comes_while_a_copier_ends_gets_the_next_one() -> None:
    world = World(config())
    a = on_device(world, "a")
    a.register(namespace())
    a.die()
    world.auto_copiers = False
    pass_idle_time(world)
    (stop,) = world.pending
    world.pending.clear()
    b = on_device(world, "b")
    seq = b.send(b.register_body(namespace()))
    # The one that is to end may still say that it is up: it is given nothing.
    world.core.copier_ready(fx.CopierId(1), world.now_ns)
    world.pump()
    assert len(effects(world, fx.OpenPool)) == 1
    assert isinstance(stop, fx.StopCopier)
    world.auto_copiers = True
    world.end(stop)
    world.pump()
    assert b.answer(seq).session == 2
    assert len(effects(world, fx.StartCopier)) == 2


def test_who_comes_while_a_copier_cannot_end_is_told_and_may_come_another_way() -> None:
    world = World(config())
    a, b = on_device(world, "a"), on_device(world, "b")
    a.register(namespace())
    a.die()
    world.auto_copiers = False
    pass_idle_time(world)
    (stop,) = pending(world, fx.StopCopier)
    world.pending.clear()
    seq = b.send(b.register_body(namespace()))
    world.pump()
    world.core.copier_refused(fx.CopierId(1), "it does not end", world.now_ns)
    world.pump()
    with pytest.raises(ReplyError, match="POOL_INVALID: it does not end") as caught:
        b.answer(seq)
    assert caught.value.detail["device"] == FIRST.hex()
    world.core.check_integrity()
    world.end(stop)
    world.pump()
    assert world.core.stats()["device_copiers"] == 0
    assert len(effects(world, fx.StartCopier)) == 1


def test_a_device_that_is_not_there_refuses_whoever_waits_and_is_not_kept() -> None:
    world = World(config(), auto_copiers=False)
    engines = [on_device(world, "a"), on_device(world, "b")]
    seqs = [engine.send(engine.register_body(namespace())) for engine in engines]
    world.pump()
    (start,) = pending(world, fx.StartCopier)
    world.pending.clear()
    world.begin(start, "no device has this uuid")
    world.pump()
    for engine, seq in zip(engines, seqs, strict=True):
        with pytest.raises(ReplyError, match="POOL_INVALID: no device has this uuid") as caught:
            engine.answer(seq)
        assert caught.value.detail["device"] == FIRST.hex()
    (stop,) = pending(world, fx.StopCopier)
    world.end(stop)
    world.pump()
    stats = world.core.stats()
    assert (stats["device_copiers"], stats["sessions"], stats["namespaces"]) == (0, 0, 0)
    assert not pending(world, fx.StartCopier)
    world.auto_copiers = True
    assert engines[0].register(namespace()) == 3


def test_a_device_that_went_leaves_its_engines_registered_and_is_tried_again() -> None:
    world = World(config())
    a, b = on_device(world, "a"), on_device(world, "b")
    a.register(namespace())
    world.auto_copiers = False
    world.lose(1)
    world.begin(fx.StartCopier(fx.CopierId(1), FIRST), "it fell off the bus")
    seq = b.send(b.register_body(namespace()))
    world.pump()
    assert a.error(a.store_body(chain("x", 2))) is ErrorCode.UNAVAILABLE
    assert not effects(world, fx.StopCopier)
    (again,) = pending(world, fx.StartCopier)
    world.pending.clear()
    world.begin(again, "it fell off the bus")
    world.pump()
    with pytest.raises(ReplyError, match="POOL_INVALID: it fell off the bus"):
        b.answer(seq)
    world.pending.clear()
    world.begin(again)
    world.pump()
    assert a.save(chain("x", 2)) == 2


def test_a_registration_waits_for_its_copier_no_longer_than_its_deadline() -> None:
    world = World(config(), auto_copiers=False)
    a = on_device(world, "a")
    seq = a.send(a.register_body(namespace()), timeout_ns=SECOND)
    world.pump()
    world.step(2 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    with pytest.raises(ReplyError, match="DEADLINE_EXCEEDED"):
        a.answer(seq)
    assert world.core.stats()["sessions"] == 0
    pass_idle_time(world)
    assert pending(world, fx.StopCopier)


def test_only_so_many_devices_are_served_and_one_more_changes_nothing() -> None:
    world = World(config(extents=MAX_DEVICES + 2))
    for number in range(MAX_DEVICES):
        on_device(world, f"e{number}", bytes([number]) * 16).register(namespace())
    late = on_device(world, "late", b"\xff" * 16)
    assert late.error(late.register_body(namespace("other"))) is ErrorCode.LIMIT_EXCEEDED
    stats = world.core.stats()
    assert (stats["device_copiers"], stats["namespaces"]) == (MAX_DEVICES, 1)
    another = on_device(world, "another", bytes(16))
    another.register(namespace())
    assert another.save(chain("x", 2)) == 2


def test_a_process_that_names_one_false_device_after_the_other_takes_no_others_place() -> None:
    world = World(config(), auto_copiers=False)
    evil = on_device(world, "evil")
    uuids = (number.to_bytes(16, "big") for number in range(10_000))

    def name_one() -> bool:
        """Whether a copier was started for it, which then could not be."""
        evil.device = next(uuids)
        known = len(effects(world, fx.StartCopier))
        seq = evil.send(evil.register_body(namespace()))
        world.pump()
        for start in pending(world, fx.StartCopier):
            world.pending.remove(start)
            world.begin(start, "no such device")
            world.pump()
        for stop in pending(world, fx.StopCopier):
            world.pending.remove(stop)
            world.end(stop)
        with pytest.raises(ReplyError) as caught:
            evil.answer(seq)
        assert caught.value.detail["device"] == evil.device.hex()
        is_limit = caught.value.code is ErrorCode.LIMIT_EXCEEDED
        assert is_limit == (len(effects(world, fx.StartCopier)) == known)
        return not is_limit

    assert [name_one() for _ in range(20)].count(True) == STARTS_AT_ONCE
    world.step(START_NS)
    assert [name_one() for _ in range(20)].count(True) == 1
    assert world.core.stats()["device_copiers"] == 0
    world.step(100 * START_NS)
    assert [name_one() for _ in range(20)].count(True) == STARTS_AT_ONCE
    world.auto_copiers = True
    assert on_device(world, "honest").register(namespace())


def test_copiers_that_came_to_run_are_not_held_against_who_had_them_started() -> None:
    world = World(config(extents=MAX_DEVICES))
    many = on_device(world, "many")
    for number in range(2 * STARTS_AT_ONCE):
        many.device = bytes([number]) * 16
        many.register(namespace(f"m{number}", ranks=1))
        assert many.ask(many.unregister_body()) == m.Done()
    assert world.core.stats()["device_copiers"] == 2 * STARTS_AT_ONCE


def test_one_copier_lost_with_copies_under_way_leaves_the_others_alone() -> None:
    world = World(config(), auto_copies=False)
    a, b, c = on_device(world, "a"), on_device(world, "b", SECOND_DEVICE), world.engine("c")
    for engine in (a, b, c):
        engine.register(namespace())
    seqs = [
        one.send(one.store_body(chain(name, 2))) for one, name in ((a, "x"), (b, "y"), (c, "z"))
    ]
    world.pump()
    assert {job.copier for job in world.jobs.values()} == {0, 1, 2}
    world.lose(1)
    world.pump()
    assert a.answer(seqs[0]).stop is m.StopReason.COPY_FAILED
    assert a.error(a.store_body(chain("x", 2))) is ErrorCode.UNAVAILABLE
    for job in list(world.jobs):
        world.finish(job)
    world.pump()
    assert [one.answer(seq).copied for one, seq in ((b, seqs[1]), (c, seqs[2]))] == [2, 2]
    world.auto_copies = True
    assert b.save(chain("w", 2)) == 2
    world.begin(fx.StartCopier(fx.CopierId(1), FIRST))
    world.pump()
    assert a.save(chain("x", 2)) == 2


def test_a_stuck_copier_is_not_ended_before_it_is_seen_dead() -> None:
    world = World(config(), auto_copies=False)
    a = on_device(world, "a")
    a.register(namespace())
    a.send(a.store_body(chain("x", 2)))
    world.pump()
    world.lose(1, stuck_life=1)
    world.begin(fx.StartCopier(fx.CopierId(1), FIRST))
    a.die()
    pass_idle_time(world)
    stats = world.core.stats()
    # Its pieces keep their slots, and with them the session: the device's copier is kept, too.
    assert (stats["sessions"], stats["copies_stranded"]) == (1, 1)
    assert not effects(world, fx.StopCopier)
    world.core.copier_gone(fx.CopierId(1), 1, world.now_ns)
    world.pump()
    assert world.core.stats()["sessions"] == 0
    pass_idle_time(world)
    assert effects(world, fx.StopCopier)


def test_an_idle_copier_with_a_stuck_predecessor_waits_on() -> None:
    world = World(config())
    a = on_device(world, "a")
    a.register(namespace())
    world.lose(1, stuck_life=1)
    world.begin(fx.StartCopier(fx.CopierId(1), FIRST))
    a.die()
    pass_idle_time(world)
    assert not effects(world, fx.StopCopier)
    world.core.copier_gone(fx.CopierId(1), 1, world.now_ns)
    pass_idle_time(world)
    assert effects(world, fx.StopCopier)


def test_a_copier_that_ended_by_itself_is_started_again() -> None:
    world = World(config())
    a = on_device(world, "a")
    a.register(namespace())
    world.lose(1)
    world.core.copier_ended(fx.CopierId(1), world.now_ns)
    world.pump()
    assert len(effects(world, fx.StartCopier)) == 2
    assert a.save(chain("x", 3)) == 3


def test_what_is_told_of_copiers_that_nobody_knows_is_passed_over() -> None:
    world = World(config())
    nobody = fx.CopierId(7)
    world.core.copier_ready(nobody, world.now_ns)
    world.core.copier_lost(nobody, world.now_ns)
    world.core.copier_stuck(nobody, 1, world.now_ns)
    world.core.copier_gone(nobody, 1, world.now_ns)
    world.core.copier_refused(nobody, "x", world.now_ns)
    world.core.copier_ended(nobody, world.now_ns)
    world.core.copier_refused(fx.HOST_COPIER, "x", world.now_ns)
    world.core.copier_ended(fx.CopierId(7), world.now_ns)
    world.pump()
    world.core.check_integrity()
    a = world.engine("a")
    a.register(namespace())
    assert a.save(chain("x", 2)) == 2

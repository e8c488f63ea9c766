"""Readers of the event stream know what is held: at random, late, overrun, after restarts."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, rule

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.namespace import fingerprint
from server.core import following
from server.core.events import EventLog
from tests.server.core import reborn
from tests.server.core.router import Router, truth
from tests.server.core.spaces import keys_of
from tests.server.core.test_core_stateful import CoreMachine, numbers
from tests.server.core.world import SECOND, World, chain, config, namespace


def router(world: World) -> Router:
    return Router(world.engine("router"))


def test_what_was_there_before_and_what_comes_and_goes() -> None:
    world = World(config(extents=3, slots=4))
    a = world.engine()
    a.register(namespace())
    a.save(chain("x", 5))
    one = router(world)
    one.catch_up()
    assert one.holds() == truth(world.core)
    assert one.kinds == []
    a.save(chain("y", 6))
    a.save(chain("z", 6))  # evicts
    one.catch_up()
    assert one.holds() == truth(world.core)
    assert set(one.kinds) == {"stored", "removed"}
    assert one.num_begun == 1
    a.ask(m.Clear())
    a.save(chain("w", 2))
    one.catch_up()
    assert one.holds() == truth(world.core)
    assert "cleared" in one.kinds


def test_a_chunk_is_stored_when_its_last_rank_has_it() -> None:
    world = World(config())
    space = namespace("tp", ranks=2)
    ranks = [world.engine("a", rank) for rank in range(2)]
    seqs = []
    for rank in ranks:
        body = rank.register_body(space)
        assert body.memory is not None
        world.core.pool_offered(rank.process, rank.pool, body.memory.size_bytes)
        seqs.append(rank.begin(body))
    for rank, seq in zip(ranks, seqs, strict=True):
        rank.session = rank.answer(seq).session
        rank.report()
    one = router(world)
    one.catch_up()
    keys = chain("x", 3)
    assert ranks[0].save(keys) == 3
    one.catch_up()
    assert one.holds() == {}
    assert ranks[1].save(keys[:2]) == 2
    one.catch_up()
    (held,) = one.holds().values()
    assert held == {keys[0]: b"", keys[1]: keys[0]}


def test_it_waits_for_news_and_gathers_them() -> None:
    world = World(config())
    a, r = world.engine(), world.engine("r")
    a.register(namespace())
    start = r.ask(m.Events(cursor=0))
    assert (start.lost, start.events) == (True, ())
    seq = r.begin(m.Events(cursor=start.cursor, wait_ms=5000))
    assert seq not in r.replies
    a.save(chain("x", 2))
    a.save(chain("y", 2))
    assert seq not in r.replies, "not before others have joined it"
    world.step(following.GATHER_NS)
    world.core.tick(world.now_ns)
    world.pump()
    reply = r.answer(seq)
    assert [event.kind for event in reply.events] == ["stored"] * 2
    assert reply.cursor == start.cursor + 2
    assert world.core.stats()["replies_owed"] == 0


def test_a_wait_ends_in_time_and_a_second_one_ends_the_first() -> None:
    world = World(config())
    r = world.engine("r")
    cursor = r.ask(m.Events(cursor=0)).cursor
    first = r.begin(m.Events(cursor=cursor, wait_ms=60_000))
    second = r.begin(m.Events(cursor=cursor, wait_ms=1000))
    assert r.answer(first) == m.EventsReply(cursor=cursor)
    assert second not in r.replies
    world.step(SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    assert r.answer(second) == m.EventsReply(cursor=cursor)


def test_nobody_waits_for_a_server_that_ends_and_only_so_many_for_one_that_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "MAX_WAITING", 1)
    world = World(config())
    r, s = world.engine("r"), world.engine("s")
    cursor = r.ask(m.Events(cursor=0)).cursor
    seq = r.begin(m.Events(cursor=cursor, wait_ms=60_000))
    assert world.core.stats()["event_readers_waiting"] == 1
    assert s.error(m.Events(cursor=cursor, wait_ms=1)) is ErrorCode.BUSY
    world.core.begin_drain(world.now_ns)
    world.pump()
    assert r.answer(seq) == m.EventsReply(cursor=cursor)
    assert s.ask(m.Events(cursor=cursor, wait_ms=60_000)) == m.EventsReply(cursor=cursor)


def test_nothing_is_noted_before_anybody_asks_nor_long_after() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    state = world.core._state
    a.save(chain("x", 2))
    assert not state.following.accounted_bytes
    before = state.accounted_bytes()
    cursor = a.ask(m.Events(cursor=0)).cursor
    assert state.accounted_bytes() > before
    for _ in range(2):
        world.step(following.IDLE_NS)
        world.core.tick(world.now_ns)
    assert [one.events for one in (state.publisher, state.arena, state.operations)] == [None] * 3
    assert state.accounted_bytes() == before
    a.save(chain("y", 2))
    # Who comes back has missed something, and is told.
    again = a.ask(m.Events(cursor=cursor))
    assert again.lost
    assert again.cursor > cursor
    assert world.core.stats()["event_losses"] == 1


def test_a_cursor_that_is_not_there_is_a_loss() -> None:
    world = World(config())
    r = world.engine("r")
    cursor = r.ask(m.Events(cursor=0)).cursor
    assert r.ask(m.Events(cursor=cursor + 1)).lost
    assert r.error(m.Snapshot(fingerprint=b"short")) is ErrorCode.INVALID_ARGUMENT


def test_pages_are_bounded_and_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MAX_SNAPSHOT_CHUNKS", 3)
    monkeypatch.setattr(following, "PAGE_NODES", 5)
    world = World(config(extents=8, slots=16))
    a, b = world.engine("one"), world.engine("two")
    for engine, name in ((a, "one"), (b, "two")):
        engine.register(namespace(name))
        engine.save(chain("x", 11))
    one = router(world)
    one.step()
    pages = 0
    while not one.reader.is_current:
        # What happens between two pages is told afterwards.
        if pages == 2:
            a.ask(m.Clear())
            a.save(chain("w", 4))
        one.step()
        pages += 1
    assert pages > 4
    assert one.holds() == truth(world.core)


def test_a_namespace_that_goes_between_two_pages_leaves_its_place_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "MAX_SNAPSHOT_CHUNKS", 3)
    world = World(config(extents=8, slots=16))
    engines = {}
    for name in ("one", "two"):
        a = world.engine(name)
        a.register(namespace(name))
        a.save(chain("x", 6))
        engines[bytes(fingerprint(a.space))] = a
    one = router(world)
    one.step()
    one.step()
    page = one.reader.ask()
    assert isinstance(page, m.Snapshot)
    assert page.position
    goes = engines.pop(page.fingerprint)
    goes.die()
    (stays,) = engines.values()
    stays.ask(m.Clear(fingerprint=page.fingerprint))
    assert page.fingerprint not in world.core._state.roster.owners
    one.catch_up()
    assert one.holds() == truth(world.core)
    assert [len(chunks) for chunks in one.holds().values()] == [6]


def test_a_late_reader_is_told_that_it_lost_events_and_catches_up_by_pages() -> None:
    world = World(config(extents=4, slots=8))
    a = world.engine()
    a.register(namespace())
    one = router(world)
    one.catch_up()
    small = EventLog(64)
    small.first = small.next = one.reader.cursor
    world.core._state.following._write_to(small)
    for number in range(20):
        a.save(chain(f"c{number}", 5))
    one.catch_up()
    assert one.num_begun == 2
    assert one.holds() == truth(world.core)


@pytest.mark.parametrize("seed", range(3))
def test_after_a_restart_with_the_same_arena_it_begins_anew(seed: int) -> None:
    draw = random.Random(seed)
    world = World(config(extents=4, slots=6), seed=seed, check=False)
    a = world.engine()
    a.register(namespace())
    one = router(world)
    for _ in range(3):
        for _ in range(4):
            a.save(keys_of(draw.choice("xyz"), draw.randrange(2))[: draw.randint(1, 14)])
            if draw.random() < 0.5:
                one.step()
        one.catch_up()
        assert one.holds() == truth(world.core)
        reborn.kill(world)
        world, _ = reborn.reborn(world, world.config)
        world.strangers.clear()
        a = world.engine("next")
        a.register(namespace())
        # The epoch is another: whoever follows has a new connection, and a new reader.
        one = router(world)
        one.catch_up()
        assert one.holds() == truth(world.core) != {}


class FollowedMachine(CoreMachine):
    """The core at random, followed by one reader that is prompt and by one that is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.world.check = False  # the plain machine does that
        self.prompt = router(self.world)
        self.slow = Router(self.world.engine("slow"))
        self.prompt.step()
        self.world.core._state.following._write_to(EventLog(64))  # so that it is overrun

    @rule(number=numbers)
    def slow_one_asks(self, number: int) -> None:
        for _ in range(number % 3):
            self.slow.step()

    @invariant()
    def the_prompt_one_knows_what_is_held(self) -> None:
        self.prompt.catch_up()
        assert self.prompt.holds() == truth(self.world.core)

    def teardown(self) -> None:
        self.slow.catch_up()
        assert self.slow.holds() == truth(self.world.core)
        super().teardown()


FollowedMachine.TestCase.settings = settings(
    max_examples=5,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestFollowed = FollowedMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestFollowedLong(FollowedMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=150,
        stateful_step_count=100,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

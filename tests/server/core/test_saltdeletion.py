"""DELETE_SALT: all of one salt goes, in L1 and below, and nothing of anybody else."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.operations import Operations
from server.core.tiers.policy import Policy
from tests.server.core.engine import Engine
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import SECOND, World, chain, config, namespace

SALT, OTHER = b"s" * 16, b"t" * 16
DISK = TierConfig("disk", shared_bytes=1 << 30, lists=True)
STORE = TierConfig("valkey")


def begun(world: World, space: str = "a") -> Engine:
    engine = world.engine(f"e{space}{len(world.engines)}")
    engine.register(namespace(space))
    return engine


def delete(engine: Engine, look: bool = False, salt: bytes = SALT) -> m.DeleteSaltReply:
    reply: m.DeleteSaltReply = engine.ask(m.DeleteSalt(tenant=salt, look=look))
    return reply


def held(engine: Engine, keys: list[bytes]) -> int:
    body = m.Inspect(fingerprint=fingerprint(engine.space), keys=b"".join(keys))
    chunks: int = engine.ask(body).chunks
    return chunks


def test_all_of_a_salt_goes_in_every_namespace_and_nothing_of_others() -> None:
    world = World(config(extents=8, slots=16))
    a, b = begun(world), begun(world, "b")
    for engine in (a, b):
        for tenant, name in ((SALT, "s"), (OTHER, "o"), (b"", "n")):
            engine.tenant = tenant
            engine.save(chain(name, 7))
    assert delete(a, look=True).chunks == 14
    assert held(a, chain("s", 7)) == 7, "a look takes nothing"
    reply = delete(a)
    assert (reply.chunks, reply.tier_values, reply.tiers_unknown, reply.more) == (14, {}, (), False)
    assert delete(a, look=True).chunks == 0
    for engine in (a, b):
        assert [held(engine, chain(name, 7)) for name in "son"] == [0, 7, 7]
    assert world.core.stats()["deleted_chunks"] == 14
    assert a.save(chain("s", 7)) == 7


def test_a_chunk_of_several_shards_counts_once() -> None:
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("e", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
        engine.tenant = SALT
    for engine in ranks:
        engine.save(chain("s", 5))
    assert delete(ranks[0], look=True).chunks == 5
    assert delete(ranks[0]).chunks == 5
    assert delete(ranks[0], look=True).chunks == 0


def test_what_is_leased_goes_from_the_index_and_keeps_its_bytes() -> None:
    world = World(config(extents=4, slots=16))
    engine = begun(world)
    engine.tenant = SALT
    keys = chain("s", 5)
    engine.save(keys)
    found = engine.lookup(keys)
    engine.retrieve(keys, found.lease, 0, 5)
    assert delete(engine).chunks == 5
    world.check_claims()
    assert held(engine, keys) == 0


@pytest.mark.parametrize("look", [True, False])
def test_what_clear_has_not_swept_yet_leads_to_nobody_elses_chunks(
    monkeypatch: pytest.MonkeyPatch, look: bool
) -> None:
    world = World(config(extents=8, slots=16))
    engine = begun(world)
    engine.tenant = SALT
    engine.save(chain("s", 7))
    monkeypatch.setattr(Operations, "_sweep", lambda *args: None)
    engine.ask(m.Clear(fingerprint=fingerprint(engine.space)))
    engine.tenant = OTHER
    engine.save(chain("o", 7))
    assert delete(engine, look).chunks == 0
    assert held(engine, chain("o", 7)) == 7


@pytest.mark.parametrize("seed", range(3))
def test_tiers_forget_it_too_those_that_know_by_themselves(seed: int) -> None:
    world = TierWorld(tiered(DISK, STORE, extents=8, slots=16), seed=seed)
    world.up(0)
    world.up(1)
    engine = begun(world)
    names = {}
    for tenant, name in ((SALT, "s"), (OTHER, "o"), (b"", "n")):
        engine.tenant = tenant
        engine.save(chain(name, 6))
        names[name] = {(fingerprint(engine.space), key, 0) for key in chain(name, 6)}
    assert world.tiers[0].store == world.tiers[1].store == set().union(*names.values())
    reply = delete(engine)
    assert (reply.chunks, reply.tier_values, reply.tiers_unknown) == (6, {"disk": 6}, ("valkey",))
    assert (reply.tiers_pending, reply.more) == (0, False)
    for tier in world.tiers:
        assert tier.store == names["o"] | names["n"]
    assert delete(engine, look=True).tier_values == {"disk": 0}


def test_what_only_the_disk_has_goes_there_and_in_the_stores_that_do_not_know() -> None:
    world = TierWorld(tiered(DISK, STORE, extents=2, slots=4))
    world.up(0)
    world.up(1)
    engine = begun(world)
    engine.tenant = SALT
    for number in range(6):
        world.step(SECOND)
        engine.save(chain(f"s{number}", 2))
    assert len(world.tiers[0].store) == 12
    engine.tenant = OTHER
    for number in range(4):
        world.step(SECOND)
        engine.save(chain(f"o{number}", 2))
    assert sum(held(engine, chain(f"s{number}", 2)) for number in range(6)) == 0
    assert delete(engine).tier_values == {"disk": 12}
    others = {(fingerprint(engine.space), key, 0) for n in range(4) for key in chain(f"o{n}", 2)}
    assert world.tiers[0].store == world.tiers[1].store == others


@pytest.mark.parametrize("tier", [DISK, TierConfig("disk", has_ledger=True)])
def test_a_namespace_that_only_the_disk_or_a_ledger_knows(
    monkeypatch: pytest.MonkeyPatch, tier: TierConfig
) -> None:
    monkeypatch.setattr("server.core.saltdeletion.MAX_NAMES", 5)
    world = TierWorld(tiered(tier))
    world.up()
    engine = begun(world)
    space = b"gone" * 4
    mine = [(space, bytes([number]) * 16, number % 2) for number in range(12)]
    world.tiers[0].store |= set(mine)
    world.tiers[0].salts = dict.fromkeys(mine, SALT)
    others = {(space, b"k" * 16, 0)}
    world.tiers[0].store |= others
    rounds = [delete(engine)]
    while rounds[-1].more:
        rounds.append(delete(engine))
    assert [one.tier_values["disk"] for one in rounds] == [5, 5, 2]
    assert world.tiers[0].store == others


LEDGER = TierConfig("valkey", has_ledger=True)


def stored(world: TierWorld, number: int) -> int:
    return sum(world.tiers[number].salts[one] == SALT for one in world.tiers[number].store)


@pytest.mark.parametrize("most", [448, 7])
def test_each_tier_counts_its_own_whoever_else_names_them(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("server.core.saltdeletion.MAX_NAMES", most)
    world = TierWorld(tiered(DISK, LEDGER, extents=8, slots=16))
    world.up(0)
    world.up(1)
    engine = begun(world)
    engine.tenant = SALT
    engine.save(chain("x", 20))
    gone = sorted(world.tiers[0].store)[:8]  # evicted there, not in the store
    world.tiers[0].store -= set(gone)
    assert delete(engine, look=True).tier_values == {"disk": min(12, most), "valkey": min(20, most)}
    rounds = [delete(engine)]
    while rounds[-1].more:
        rounds.append(delete(engine))
    assert not world.tiers[0].store | world.tiers[1].store
    counts = {name: sum(one.tier_values[name] for one in rounds) for name in ("disk", "valkey")}
    if most > 20:
        assert (len(rounds), counts) == (1, {"disk": 12, "valkey": 20})
    else:  # what another named is in no later answer: with more, it is a number of at least
        assert len(rounds) > 1
        assert 7 <= counts["disk"] <= 12
        assert 7 <= counts["valkey"] <= 20


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_tier_that_did_not_say_that_it_forgot_has_deleted_nothing(is_gone: bool) -> None:
    world = TierWorld(tiered(DISK, LEDGER, extents=8, slots=16))
    world.up(0)
    world.up(1)
    engine = begun(world)
    engine.tenant = SALT
    engine.save(chain("x", 6))
    world.auto_tiers = False
    number = engine.begin(m.DeleteSalt(tenant=SALT))
    for tier in (0, 1):
        (job,) = world.flying(tier, fx.TierList)
        world.answer(job.job)
    world.pump()
    while jobs := world.flying(0, fx.TierDrop):
        world.answer(jobs[0].job)
        world.pump()
    assert number not in engine.replies, "the store is waited for"
    if is_gone:
        world.down(1)
        world.pump()
    else:
        world.wait(6 * SECOND)
    reply = engine.answer(number)
    assert (reply.tier_values, reply.tiers_pending) == ({"disk": 6, "valkey": 0}, 1)
    assert stored(world, 1) == 6
    world.auto_tiers = True
    if is_gone:
        world.up(1)
    for job in world.flying(1, fx.TierDrop):
        world.answer(job.job)
    world.wait(5 * SECOND)
    assert not world.tiers[1].store, "it is owed"


def test_what_cannot_be_owed_now_is_not_told_as_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.core.saltdeletion.MAX_NAMES", 6)
    monkeypatch.setattr("server.core.tiers.forgetting.MAX_OWED", 8)
    world = TierWorld(tiered(DISK, STORE))
    world.up()
    engine = begun(world)
    for number in range(4):  # half of the places; the store is down
        engine.ask(m.Clear(fingerprint=bytes([number]) * 16))
    mine = [(bytes([number]) * 16, b"k" * 16, 0) for number in range(10, 16)]
    world.tiers[0].store |= set(mine)
    world.tiers[0].salts = dict.fromkeys(mine, SALT)
    reply = delete(engine)
    assert (reply.tier_values, reply.more) == ({"disk": 0}, True)
    assert reply.tiers_unknown == ("disk", "valkey")
    assert delete(engine, look=True).tier_values == {"disk": 6}


@pytest.mark.parametrize("is_up", [True, False])
def test_much_goes_in_rounds_and_never_takes_others_with_it(
    monkeypatch: pytest.MonkeyPatch, is_up: bool
) -> None:
    monkeypatch.setattr("server.core.tiers.forgetting.MAX_OWED_KEYS", 10)
    world = TierWorld(tiered(STORE, extents=8, slots=16))
    world.up()
    engine = begun(world)
    engine.tenant = OTHER
    engine.save(chain("o", 6))
    engine.tenant = SALT
    for name in "xyz":
        engine.save(chain(name, 9))
    others = {(fingerprint(engine.space), key, 0) for key in chain("o", 6)}
    if not is_up:
        world.down()
    rounds = [delete(engine)]
    while rounds[-1].more and not rounds[-1].tiers_pending:
        rounds.append(delete(engine))
    if is_up:
        assert (rounds[0].chunks, sum(one.chunks for one in rounds)) == (10, 27)
        assert world.tiers[0].store == others
        assert delete(engine, look=True).chunks == 0
    else:
        assert [(one.chunks, one.tiers_pending) for one in rounds] == [(10, 1)]
        world.up()
        world.wait(5 * SECOND)
        assert others < world.tiers[0].store
    assert world.core.stats().get("tier_valkey_deletes_widened", 0) == 0


def test_a_tier_that_cannot_be_asked_is_named() -> None:
    readonly = TierConfig("old", policy=Policy.NONE)
    world = TierWorld(tiered(DISK, readonly))
    engine = begun(world)
    engine.tenant = SALT
    engine.save(chain("s", 3))
    reply = delete(engine)
    assert (reply.chunks, reply.tiers_unknown, reply.tiers_pending) == (3, ("disk",), 1)


def test_what_makes_no_sense_is_refused_and_few_are_under_way() -> None:
    world = TierWorld(tiered(DISK))
    world.up()
    engine = begun(world)
    assert engine.error(m.DeleteSalt(tenant=bytes(16))) is ErrorCode.INVALID_ARGUMENT
    world.auto_tiers = False
    waiting = [engine.begin(m.DeleteSalt(tenant=SALT)) for _ in range(4)]
    assert not any(number in engine.replies for number in waiting)
    assert engine.error(m.DeleteSalt(tenant=SALT)) is ErrorCode.BUSY
    for job in world.flying(0, fx.TierList):
        world.answer(job.job)
    world.pump()
    assert all(engine.answer(number).chunks == 0 for number in waiting)


def test_records_that_nobody_looks_at_are_a_fault_and_no_silence() -> None:
    world = World(config())
    engine = begun(world)
    engine.save(chain("x", 1))
    world._acts[fx.FindSalt] = lambda effect: None
    number = engine.send(m.DeleteSalt(tenant=SALT))
    with pytest.raises(AssertionError, match="nobody looked at extent"):
        world.pump()
    world.pump()
    with pytest.raises(ReplyError, match="the server failed"):
        engine.answer(number)

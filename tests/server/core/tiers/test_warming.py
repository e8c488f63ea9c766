"""Warming: all that tiers list comes, in any shape, and nothing that is in use goes for it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.namespace import Namespace, fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers.listed import Listed
from server.core.tiers.policy import Policy
from tests.server.core.spaces import SPACES, keys_of
from tests.server.core.tiers.model import tiered
from tests.server.core.tiers.reading import READ_ONLY, ReadWorld, query
from tests.server.core.world import PAGE, SECOND, Engine, chain, namespace

PLAIN = namespace()


class Bench:
    """A server that was just started, an operator, and tiers that have something."""

    def __init__(self, *tiers: TierConfig, up: bool = True, **fields: Any) -> None:
        options = {name: fields.pop(name) for name in ("auto_tiers",) if name in fields}
        self.world = ReadWorld(tiered(*(tiers or (READ_ONLY,)), **fields), **options)
        if up:
            for number in range(len(self.world.tiers)):
                self.world.up(number)
        self.operator = self.world.engine("operator")

    def give(self, keys: list[bytes], space: Namespace = PLAIN, tier: int = 0) -> None:
        self.world.give(tier, SimpleNamespace(space=space), keys)  # type: ignore[arg-type]

    def begin(self, **fields: Any) -> int:
        number = self.operator.ask(m.Warm(**fields)).warm
        assert isinstance(number, int)
        self.world.pump()
        return number

    def status(self, number: int) -> m.WarmStatusReply:
        reply = self.operator.ask(m.WarmStatus(warm=number))
        assert isinstance(reply, m.WarmStatusReply)
        return reply

    def warm(self, **fields: Any) -> m.WarmStatusReply:
        number = self.begin(**fields)
        self.world.settle()
        reply = self.status(number)
        assert reply.final
        assert reply.reason
        return reply

    def engine(self, space: Namespace = PLAIN, name: str = "e") -> Engine:
        engine = self.world.engine(name)
        engine.register(space)
        return engine

    def stats(self) -> dict[str, int]:
        return self.world.core.stats()


def test_all_that_a_tier_has_is_there_before_any_engine() -> None:
    bench, keys = Bench(), chain("x", 8)
    bench.give(keys)
    reply = bench.warm()
    assert (reply.listed, reply.loaded, reply.held, reply.missed) == (8, 8, 0, 0)
    assert reply.loaded_bytes == 8 * PAGE
    assert reply.reason == "all that tiers list is there"
    found = bench.engine().lookup(keys)
    assert (found.ready, found.final) == (8, True)
    stats = bench.stats()
    assert (stats["warms"], stats["warmed_chunks"], stats["warmed_bytes"]) == (1, 8, 8 * PAGE)
    assert stats["tier_t_warmed_chunks"] == 8
    assert stats.get("tier_t_hit_chunks", 0) == 0
    assert stats["slots_reserved"] == 0


@pytest.mark.parametrize("space", SPACES, ids=lambda space: str(space.model_id))
def test_every_kind_of_namespace_and_any_tree(space: Namespace) -> None:
    bench = Bench(extents=64, slots=32, page_bytes=PAGE)
    names = [keys_of(name, branch) for name in "xy" for branch in (0, 1)]
    for keys in names:
        bench.give(keys, space)
    reply = bench.warm()
    assert (reply.missed, reply.loaded) == (0, reply.listed)
    assert reply.listed == len({key for keys in names for key in keys})
    ranks = [bench.world.engine("e", rank) for rank in range(space.num_ranks)]
    for one in ranks:
        one.register(space)
    for number, keys in enumerate(names, 1):
        found = ranks[0].lookup(keys, request=number)
        assert (found.ready, found.final) == (len(keys), True)


def test_what_is_warmed_again_is_there_already() -> None:
    bench, keys = Bench(), chain("x", 8)
    bench.give(keys)
    bench.warm()
    reply = bench.warm()
    assert (reply.listed, reply.loaded, reply.held) == (8, 0, 8)


def test_tiers_complement_each_other() -> None:
    bench = Bench(TierConfig("a", policy=Policy.NONE), TierConfig("b", policy=Policy.NONE))
    keys = chain("x", 8)
    bench.give(keys[:3], tier=0)
    bench.give(keys, tier=1)
    assert bench.warm().loaded == 8
    assert bench.engine().lookup(keys).ready == 8


def test_one_namespace_of_several() -> None:
    bench, keys, other = Bench(), chain("x", 4), namespace("other")
    bench.give(keys)
    bench.give(keys, other)
    assert bench.warm(fingerprint=fingerprint(other)).loaded == 4
    assert bench.engine(other).lookup(keys).ready == 4
    assert bench.stats()["namespaces"] == 1
    names = ", ".join(fingerprint(space).hex() for space in (PLAIN, other))
    reason = f"no tier knows this namespace; known: {names}"
    assert bench.warm(fingerprint=b"n" * 16).reason == reason
    wanted = bench.warm(fingerprint=b"n" * 16, keys=keys[0])
    assert wanted.reason == reason


def test_one_prefix_whether_or_not_the_tier_can_list() -> None:
    bench, keys = Bench(), chain("x", 8)
    bench.give(keys)
    bench.give(chain("other", 8))
    tier = bench.world.tiers[0]
    name = fingerprint(PLAIN)
    reply = bench.warm(fingerprint=name, keys=b"".join(keys[:5]))
    assert (reply.listed, reply.loaded, reply.missed) == (5, 5, 0)
    assert reply.reason == "all that was wanted is there"
    assert bench.stats()["chunks"] == 5
    # Its namespace is known now, so the tier need not say anything.
    tier.described = None
    reply = bench.warm(fingerprint=name, keys=b"".join([*keys, *chain("y", 9)[8:]]))
    assert (reply.held, reply.loaded, reply.missed) == (5, 3, 1)
    assert reply.reason == "1 chunk was not found"
    assert bench.engine().lookup(keys).ready == 8


def test_a_prefix_needs_its_namespace() -> None:
    bench, key = Bench(), chain("x", 1)[0]
    assert bench.operator.error(m.Warm(keys=key)) is ErrorCode.INVALID_ARGUMENT
    odd = m.Warm(fingerprint=fingerprint(PLAIN), keys=key + b"x")
    assert bench.operator.error(odd) is ErrorCode.COUNT_MISMATCH
    assert bench.warm(fingerprint=b"n" * 16, keys=key).reason == "no tier knows this namespace"


def test_no_more_bytes_than_wanted() -> None:
    bench, keys = Bench(), chain("x", 8)
    bench.give(keys)
    reply = bench.warm(max_bytes=5 * PAGE + 1)
    assert (reply.loaded, reply.reason) == (5, "as many bytes as were wanted")
    assert bench.engine().lookup(keys[:5]).final


def test_a_full_l1_ends_it_and_nothing_goes_for_it() -> None:
    bench, keys, mine = Bench(extents=2, slots=4), chain("x", 20), chain("m", 3)
    engine = bench.engine()
    assert engine.save(mine) == 3
    bench.give(keys)
    reply = bench.warm()
    assert reply.reason == "L1 is full"
    assert 0 < reply.loaded <= 5
    assert bench.stats().get("evicted_chunks", 0) == 0
    assert engine.lookup(mine).ready == 3
    assert bench.stats()["slots_reserved"] == 0


def test_two_namespaces_take_turns() -> None:
    bench, keys = Bench(extents=16, slots=4), chain("x", 80)
    spaces = [namespace("a"), namespace("b")]
    for space in spaces:
        bench.give(keys, space)
    assert bench.warm().reason == "L1 is full"
    owners = bench.world.core._state.roster.owners.values()
    assert len(owners) == 2
    assert min(len(owner.index) for owner in owners) > 16


def test_an_engine_that_rides_along_may_evict_and_is_not_held_up() -> None:
    bench = Bench(extents=1, slots=4, auto_tiers=False, promote_deadline_s=30.0)
    engine, old, keys = bench.engine(), chain("o", 4), chain("x", 4)
    assert engine.save(old) == 4
    bench.give(keys)
    bench.begin()
    for _ in range(3):  # its lists; the probe of the run is not answered yet
        for job in bench.world.flying(0, fx.TierList):
            bench.world.answer(job.job)
            bench.world.pump()
    assert engine.lookup(keys).pending == 4
    seq = query(engine)
    bench.world.settle()
    assert engine.answer(seq).ready == 4


def test_without_tiers_or_while_none_is_up_it_is_refused() -> None:
    nothing = Bench()
    world = nothing.world
    world.down(0)
    assert nothing.operator.error(m.Warm()) is ErrorCode.UNAVAILABLE
    assert nothing.operator.error(m.Warm(fingerprint=b"x")) is ErrorCode.INVALID_ARGUMENT
    plain = ReadWorld(tiered(extents=2)).__class__(tiered().__class__(1 << 20, 1 << 16))
    assert plain.engine("o").error(m.Warm()) is ErrorCode.UNSUPPORTED


def test_a_tier_that_cannot_list_is_said() -> None:
    bench = Bench()
    bench.world.tiers[0].described = None
    bench.give(chain("x", 3))
    assert bench.warm().reason == "tier t cannot say what it has"
    assert bench.stats()["tier_t_up"] == 1


def test_descriptions_that_are_another_namespaces_or_none_are_not_believed() -> None:
    bench, other = Bench(), fingerprint(namespace("other"))
    bench.give(chain("x", 3))
    described = bench.world.tiers[0].described
    assert described is not None
    described[other] = described[fingerprint(PLAIN)]
    described[b"z" * 16] = b"\xc1 nonsense"
    assert bench.warm().loaded == 3
    assert bench.stats()["namespaces"] == 1


def test_one_at_a_time_and_unknown_ones() -> None:
    bench = Bench(auto_tiers=False)
    bench.give(chain("x", 4))
    number = bench.begin()
    assert bench.operator.error(m.Warm()) is ErrorCode.LIMIT_EXCEEDED
    assert bench.operator.error(m.WarmStatus(warm=number + 1)) is ErrorCode.INVALID_ARGUMENT
    bench.world.settle()
    assert bench.status(number).final


@pytest.mark.parametrize("how", ["cancel", "leave", "drain"])
@pytest.mark.parametrize("answered", range(0, 12, 2))
def test_it_ends_at_any_moment_and_leaves_nothing_behind(how: str, answered: int) -> None:
    bench, keys = Bench(auto_tiers=False, promote_piece_bytes=PAGE), chain("x", 12)
    bench.give(keys)
    number = bench.begin()
    other = bench.world.engine("other")
    for _ in range(answered):
        if bench.world.tier_jobs:
            bench.world.answer(next(iter(bench.world.tier_jobs)))
            bench.world.pump()
    was_over = bench.status(number).final
    if how == "cancel":
        assert bench.operator.ask(m.WarmCancel(warm=number)).final
    elif how == "leave":
        bench.operator.die()
    else:
        bench.world.core.begin_drain(bench.world.now_ns)
    bench.world.settle()
    reply = other.ask(m.WarmStatus(warm=number))
    assert reply.final
    ends = {"cancel": "cancelled", "leave": "who asked has left", "drain": "the server is about"}
    assert reply.reason.startswith("all that" if was_over else ends[how])
    assert bench.stats()["slots_reserved"] == 0
    # What was being read when it ended may come yet, and stays.
    chunks = bench.stats()["chunks"]
    assert reply.loaded <= chunks <= reply.loaded + 4
    # A namespace of which nothing came is not kept.
    assert bench.stats()["namespaces"] == (1 if chunks else 0)


def test_a_namespace_that_is_cleared_meanwhile_stays_empty() -> None:
    bench, keys = Bench(TierConfig("w"), auto_tiers=False), chain("x", 12)
    bench.give(keys)
    number = bench.begin()
    while not bench.status(number).loaded:
        bench.world.answer(next(iter(bench.world.tier_jobs)))
        bench.world.pump()
    bench.operator.send(m.Clear())
    bench.world.settle()
    assert bench.status(number).final
    assert bench.stats()["chunks"] == 0
    assert bench.stats()["slots_reserved"] == 0


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_porter_that_dies_ends_it(stuck: int) -> None:
    for answered in range(1, 8):
        bench = Bench(auto_tiers=False)
        bench.give(chain("x", 12))
        number = bench.begin()
        for _ in range(answered):
            if bench.world.tier_jobs:
                bench.world.answer(next(iter(bench.world.tier_jobs)))
                bench.world.pump()
        bench.world.down(0, stuck_life=stuck)
        bench.world.wait(SECOND)
        if stuck:
            bench.world.gone(0, 1)
        bench.world.settle()
        assert bench.status(number).final
        assert bench.stats()["slots_reserved"] == 0


def test_values_that_are_lost_or_spoilt_end_their_chain_alone() -> None:
    bench, bad, good = Bench(), chain("b", 6), chain("g", 6)
    space = SimpleNamespace(space=PLAIN)
    bench.give([*bad])
    for key in good:
        assert key not in bad
    bench.give(good)
    bench.world.manners[0].spoilt = bench.world.names_of(space, bad[2:3])  # type: ignore[arg-type]
    reply = bench.warm()
    assert reply.loaded == 8
    assert reply.missed == 4
    assert reply.reason == "4 chunks could not be read"
    assert bench.engine().lookup(good).ready == 6


def test_pages_come_in_any_order_of_answers() -> None:
    rng = random.Random(5)
    for _ in range(20):
        bench = Bench(auto_tiers=False, extents=32, promote_piece_bytes=2 * PAGE)
        names = [keys_of(name, branch) for name in "xyz" for branch in (0, 1)]
        for keys in names:
            bench.give(keys)
        bench.world.tiers[0].page = rng.randrange(1, 9)
        number = bench.begin()
        while bench.world.tier_jobs:
            bench.world.answer(rng.choice(list(bench.world.tier_jobs)))
            bench.world.pump()
        reply = bench.status(number)
        assert reply.final
        assert (reply.missed, reply.loaded) == (0, reply.listed)


def test_an_owner_written_through_describes_itself_to_the_tier_once() -> None:
    bench = Bench(TierConfig("w"))
    engine = bench.engine()
    engine.save(chain("x", 3))
    engine.save(chain("y", 3))
    keeps = [effect for effect in bench.world.log if isinstance(effect, fx.TierKeep)]
    assert [keep.fingerprint for keep in keeps] == [fingerprint(PLAIN)]
    bench.world.down(0)
    bench.world.up(0)
    bench.world.wait(2 * SECOND)
    engine.save(chain("z", 3))
    keeps = [effect for effect in bench.world.log if isinstance(effect, fx.TierKeep)]
    assert len(keeps) == 2
    # And that is enough for the next server.
    assert {job.what for job in bench.world.log if isinstance(job, fx.TierList)} == set()
    assert bench.warm().held == 9
    assert Listed.NAMESPACES in {
        job.what for job in bench.world.log if isinstance(job, fx.TierList)
    }

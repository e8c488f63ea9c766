"""Demotion under random saves, readers, operators, deaths, and tiers that fail, fill and hang.

The model world (see ``model``) proves for each write that its bytes were published and stayed, that
no chunk goes before the one it continues, and that nothing goes between a CLEAR and its answer;
``check_integrity`` recounts pins and locks after each slice of work. Here: what waits is bounded,
every STORE is answered at once whatever the tiers do, writes pin a part of the arena only, CLEAR
leaves nothing behind, and at the end nothing is pinned.
"""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import demotion, writer
from server.core.tiers.freshness import ROUND_NS
from server.core.tiers.parts import Status
from server.core.tiers.policy import Policy
from server.core.tiers.tiers import PUT_SHARE
from tests.server.core.spaces import CHAINS, LENGTH, SPACES, keys_of
from tests.server.core.tiers.model import tiered
from tests.server.core.tiers.reading import ReadWorld
from tests.server.core.world import SECOND, Engine

TIERS = (
    TierConfig("a", window_bytes=64 << 10),
    TierConfig("b", Policy.ON_EVICT, window_bytes=32 << 10),
    TierConfig("c", Policy.AFTER_USES, uses=2, window_bytes=32 << 10),
)
MOST_WAITING = 24

chains = st.sampled_from(CHAINS)
numbers = st.integers(0, 1 << 16)
which = st.integers(0, len(TIERS) - 1)


class DemotionMachine(RuleBasedStateMachine):
    @initialize(space=st.sampled_from(SPACES), extents=st.integers(3, 6))
    def begin(self, space: object, extents: int) -> None:
        self.patches = [
            patch.object(writer, "MAX_QUEUED", MOST_WAITING),
            patch.object(demotion, "AHEAD_NODES", MOST_WAITING // 2),
        ]
        for one in self.patches:
            one.start()
        self.world = ReadWorld(tiered(*TIERS, extents=2 * extents, slots=6), auto_tiers=False)
        self.space = next(one for one in SPACES if one is space)
        self.name = fingerprint(self.space)
        self.engines: list[Engine] = []
        self.num_lives = 0
        self.join()
        for number in range(len(TIERS)):
            self.world.up(number)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.end()
        finally:
            for one in self.patches:
                one.stop()

    def join(self) -> None:
        self.num_lives += 1
        self.engines = [
            self.world.engine(f"e{self.num_lives}", rank) for rank in range(self.space.num_ranks)
        ]
        for engine in self.engines:
            engine.register(self.space)

    def end(self) -> None:
        """Everything heals: what waits is written, nothing stays pinned, CLEAR leaves nothing."""
        world = self.world
        for number, life in list(world.stuck_jobs):
            world.gone(number, life)
        for number in range(len(TIERS)):
            self.recover(number)
        for engine in self.engines:
            for shard in self.space.shards_of_rank(engine.rank):
                engine.save(keys_of(CHAINS[0], 0), shard=shard)
        for _ in range(200):
            world.wait(SECOND)
            self.answer_all()
            writers = world.core._state.demotion.writers
            if not world.tier_jobs and not any(one.num_waiting for one in writers):
                break
        else:
            raise AssertionError("writes never come to rest")
        assert world.core.stats()["pinned_slots"] == 0
        self.check_bits()
        while self.patches:  # where little may wait, the oldest is given up
            self.patches.pop().stop()
        self.use_all()
        self.engines[0].begin(m.Clear(fingerprint=self.name))
        for _ in range(20):
            world.wait(SECOND)
            self.answer_all()
        for tier in world.tiers:
            assert not any(name[0] == self.name for name in tier.store)

    def use_all(self) -> None:
        """What is used in L1 is in the tier that everything goes to, whatever that has lost."""
        world, index = self.world, self.world.core._state.roster.owners[self.name].index
        world.tiers[0].store -= set(sorted(world.tiers[0].store)[::2])
        world.wait(ROUND_NS)
        for _ in range(90):  # one that is left alone is told of the next use only
            if len(world.core._state.tiers.readable(self.name)) == len(TIERS):
                break
            self.answer_all()
            world.wait(SECOND)
        else:
            raise AssertionError("tiers never come to rest")
        for name in CHAINS:
            keys = keys_of(name, 0)
            keys = keys[: self.engines[0].lookup(keys).ready]
            for _ in range(12):
                world.wait(SECOND // 2)
                self.answer_all()
            self.engines[0].end()
            for key in keys:
                for shard in range(self.space.num_shards):
                    if index.holds(index.find(key), shard):
                        assert (self.name, key, shard) in world.tiers[0].store, "lost for good"

    def answer_all(self) -> None:
        for job in list(self.world.tier_jobs):
            if job in self.world.tier_jobs:
                self.world.answer(job)
        self.world.pump()

    def check_bits(self) -> None:
        """A tier that was never told to forget single chunks has what the slots say it has."""
        state = self.world.core._state
        for owner in state.roster.owners.values():
            for node in owner.index.nodes():
                for shard in range(owner.num_shards):
                    if not owner.index.holds(node, shard):
                        continue
                    bits = state.slots.tiers_of[owner.index.cell(node, shard)]
                    name = (owner.fingerprint, owner.index.key(node), shard)
                    for number, tier in enumerate(self.world.tiers):
                        if bits >> number & 1:
                            assert name in tier.had, "a slot says that a tier has what it never had"

    # --- engines --------------------------------------------------------------------------

    @rule(name=chains, branch=st.integers(0, 1), count=st.integers(1, LENGTH), rank=numbers)
    def save(self, name: str, branch: int, count: int, rank: int) -> None:
        engine = self.engines[rank % len(self.engines)]
        keys = keys_of(name, branch)[:count]
        for shard in self.space.shards_of_rank(engine.rank):
            engine.save(keys, shard=shard)  # is answered at once, whatever the tiers do

    @rule(name=chains, branch=st.integers(0, 1), take=st.booleans())
    def look(self, name: str, branch: int, take: bool) -> None:
        keys = keys_of(name, branch)
        reply = self.engines[0].lookup(keys)
        if reply.ready and take:
            self.engines[0].retrieve(keys, reply.lease, 0, reply.ready)
            self.engines[0].release(reply.lease, everyone=True)
        self.engines[0].end()

    @rule()
    def die(self) -> None:
        for engine in self.engines:
            engine.die()
        self.join()

    @rule()
    def clear(self) -> None:
        self.engines[0].begin(m.Clear(fingerprint=self.name))

    @rule(name=chains, at=st.integers(0, LENGTH - 1))
    def delete(self, name: str, at: int) -> None:
        self.engines[0].begin(m.Delete(fingerprint=self.name, keys=keys_of(name, 0)[at]))

    # --- tiers ----------------------------------------------------------------------------

    @rule(number=numbers, times=st.integers(1, 8))
    def answer(self, number: int, times: int) -> None:
        for _ in range(times):
            jobs = sorted(self.world.tier_jobs)
            if jobs:
                self.world.answer(jobs[number % len(jobs)])
                self.world.pump()

    @rule(tier=which, status=st.sampled_from(tuple(Status)), fails=st.booleans())
    def become(self, tier: int, status: Status, fails: bool) -> None:
        model = self.world.tiers[tier]
        model.put_status = status
        model.fails = fails
        model.is_well = not fails

    @rule(tier=which, number=numbers)
    def lose_values(self, tier: int, number: int) -> None:
        store = self.world.tiers[tier].store
        store -= set(sorted(store)[number % 3 :: 1 + number % 4])

    @rule(tier=which)
    def recover(self, tier: int) -> None:
        model = self.world.tiers[tier]
        model.put_status, model.fails, model.is_well = Status.OK, False, True
        if not model.is_up:
            self.world.up(tier)

    @rule(tier=which, is_stuck=st.booleans())
    def lose(self, tier: int, is_stuck: bool) -> None:
        if self.world.tiers[tier].is_up:
            self.num_lives += 1
            self.world.down(tier, self.num_lives if is_stuck else 0)
            self.world.pump()

    @rule(number=numbers)
    def free(self, number: int) -> None:
        stuck = sorted(self.world.stuck_jobs)
        if stuck:
            self.world.gone(*stuck[number % len(stuck)])
            self.world.pump()

    @rule(tenths=st.integers(1, 50))
    def wait(self, tenths: int) -> None:
        self.world.wait(tenths * SECOND // 10)

    @invariant()
    def bounded(self) -> None:
        if not hasattr(self, "world"):
            return
        for one in self.world.core._state.demotion.writers:
            assert one.num_waiting == sum(entry.num_left for entry in one._queue)
            assert one.num_waiting <= MOST_WAITING + 2 * LENGTH
        self.world.check_claims()
        for job in self.world.tier_jobs.values():
            self.world.check_put(job)
        for jobs in self.world.stuck_jobs.values():
            for job in jobs:
                self.world.check_put(job)

    @invariant()
    def writes_pin_a_part_only(self) -> None:
        if not hasattr(self, "world"):
            return
        flying = [
            job for number in range(len(TIERS)) for job in self.world.flying(number, fx.TierPut)
        ]
        stuck = [
            job
            for jobs in self.world.stuck_jobs.values()
            for job in jobs
            if isinstance(job, fx.TierPut)
        ]
        live = sum(int(job.parts["length"].sum()) for job in flying if job not in stuck)
        largest = max(map(self.space.slot_payload_bytes, range(self.space.num_shards)))
        most = self.world.config.arena_bytes // PUT_SHARE + 3 * largest * self.space.num_shards
        assert live <= most


TestDemotion = DemotionMachine.TestCase
TestDemotion.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

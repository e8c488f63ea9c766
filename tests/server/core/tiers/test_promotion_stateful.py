"""The whole core with tiers that lie, lose, spoil, hang, die and answer late, under random engines.

What the machine of ``test_core_stateful`` does to a core without tiers goes on; on top of it every
question to a tier is answered in any order, by the truth or otherwise, or never. The world proves
after each step that nothing is published but what a porter brought whole, and that a slot that a
porter may still write to is nobody else's; at the end nothing is left reserved, locked or owed.
"""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from protocol import messages as m
from protocol.ids import ExtentId
from protocol.namespace import fingerprint
from server.core.config import TierConfig
from server.core.slots import RESERVED
from server.core.tiers.parts import Status
from server.core.tiers.policy import Policy
from tests.server.core.spaces import SPACES, TENANTS, keys_of, quota_of
from tests.server.core.test_core_stateful import CoreMachine, chains, numbers
from tests.server.core.tiers.model import tiered
from tests.server.core.tiers.reading import ReadWorld
from tests.server.core.world import PAGE


class TierMachine(CoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lives = 0
        self.porters: list[tuple[int, int]] = []
        self.world = ReadWorld(
            tiered(
                TierConfig("a", window_bytes=24 * PAGE, shared_bytes=40 * PAGE),
                TierConfig("b", policy=Policy.NONE, window_bytes=24 * PAGE),
                extents=7,
                slots=6,
                copy_window_bytes=6 * PAGE,
                copy_piece_bytes=3 * PAGE,
                promote_deadline_s=3.0,
                promote_piece_bytes=3 * PAGE,
            ),
            auto_copies=False,
            auto_pools=False,
            auto_extents=False,
            auto_map=False,
            auto_copiers=False,
            auto_tiers=False,
        )
        self.porters = []

    @property
    def below(self) -> ReadWorld:
        return cast(ReadWorld, self.world)

    @initialize(filled=st.sets(st.tuples(chains, st.integers(0, 1)), max_size=4))
    def open_tiers(self, filled: set[tuple[str, int]]) -> None:
        for number in range(len(self.below.tiers)):
            self.below.up(number)
        for space in SPACES:
            for name, branch in sorted(filled):
                keys = keys_of(name, branch)
                self.below.tiers[1].store |= {
                    (fingerprint(space), key, shard)
                    for key in keys
                    for shard in range(space.num_shards)
                }

    # --- asking ---------------------------------------------------------------------------

    @rule(number=numbers, wait_ms=st.sampled_from([0, 20, 2000, 60_000]))
    def query(self, number: int, wait_ms: int) -> None:
        engine = self.pick(number)
        if engine is not None:
            body = m.QueryPrefetchStatus(
                session=engine.session, request=number % 3, wait_ms=wait_ms
            )

            def answered(reply: m.Body | None) -> None:
                assert reply is None or isinstance(reply, m.LookupReply)
                if isinstance(reply, m.LookupReply):
                    assert reply.final == (not reply.pending)
                    assert bool(reply.lease) == bool(reply.ready)

            self.wait(engine, body, answered)

    @rule(number=numbers, name=chains, branch=st.integers(0, 1))
    def look_up_twice(self, number: int, name: str, branch: int) -> None:
        """Two engines, or two requests, ask for chains that share a beginning."""
        self.lookup(number, name, branch, 0)
        self.lookup(number + 1, name, 1 - branch, 0)

    @rule(
        number=numbers,
        which=st.integers(0, 1),
        name=chains,
        branch=st.integers(0, 1),
        boast=st.integers(0, 2),
        bad=st.none() | numbers,
    )
    def promote(
        self, number: int, which: int, name: str, branch: int, boast: int, bad: int | None
    ) -> None:
        """A whole promotion: of what a tier was given by somebody else, and of more."""
        engine = self.pick(number)
        if engine is None:
            return
        keys, manner = keys_of(name, branch)[: 1 + number % 15], self.below.manners[which]
        self.below.give(which, engine, keys)
        manner.boast = boast
        manner.spoilt.clear()
        manner.lost.clear()
        if bad is not None:
            names = sorted(self.below.names_of(engine, keys))
            (manner.lost if bad % 2 else manner.spoilt).add(names[bad // 2 % len(names)])
        self.lookup(number, name, branch, number % 2)
        self.query(number, 60_000)
        if number % 3:
            self.answer_all()
            self.retrieve(number, 1)
        else:
            self.answer_some(number)

    @rule(number=numbers, most=st.sampled_from([0, 0, 1, 5, 40]), one=st.booleans())
    def warm(self, number: int, most: int, one: bool) -> None:
        """All that tiers have, of any namespace, beside whatever else is going on."""
        engine = self.pick(number)
        if engine is not None:
            name = fingerprint(engine.space) if one else b""
            self.wait(engine, m.Warm(fingerprint=name, max_bytes=most * PAGE))

    @rule(number=numbers)
    def end_warming(self, number: int) -> None:
        job = self.below.core._state.warming.job
        engine = self.pick(number)
        if engine is not None and job is not None:
            body = m.WarmCancel if number % 4 == 0 else m.WarmStatus
            self.wait(engine, body(warm=job.number))

    @rule(number=numbers, which=st.integers(1, len(TENANTS) - 1))
    def delete_salt(self, number: int, which: int) -> None:
        """All of a salt goes, or is counted, in whatever state anything of it is."""
        engine = self.pick(number)
        if engine is None or number % 4 > 2:
            return
        looks, salt = number % 4 == 0, TENANTS[which]

        def deleted(reply: m.Body | None) -> None:
            assert reply is None or isinstance(reply, m.DeleteSaltReply)

        self.wait(engine, m.DeleteSalt(tenant=salt, look=looks), deleted)
        if number % 16 == 1:
            self.wait(engine, m.DeleteSalt(tenant=salt), deleted)
            self.wait(engine, m.Clear(), None)

    @rule(number=numbers, floor=st.integers(0, 12), above=st.integers(0, 4))
    def allot_below(self, number: int, floor: int, above: int) -> None:
        engine, owners = self.pick(number), list(self.below.core._state.roster.owners)
        if engine is not None and owners:
            change = replace(quota_of(owners, number, floor, above), tier="a")
            self.wait(engine, m.Quotas(change=change))

    @invariant()
    def a_tier_that_is_up_knows_its_quotas(self) -> None:
        tier = self.below.core._state.tiers.tiers[0]
        if tier.is_open:
            below = self.below.core._state.quotas.below
            wanted = below.changes() if below is not None else []
            told = {(one.tenant, one.floor_bytes, one.limit_bytes) for one in wanted}
            known = self.below.tiers[0].quotas or []
            assert told == {(one.tenant, one.floor_bytes, one.limit_bytes) for one in known}

    @rule(number=numbers)
    def answer_some(self, number: int) -> None:
        """One after the other, the newest first, and not all of them."""
        for _ in range(number % 24):
            if self.below.tier_jobs:
                self.below.answer(max(self.below.tier_jobs))
                self.settle()
                self.act_on_all()

    # --- tiers ----------------------------------------------------------------------------

    @precondition(lambda self: self.below.tier_jobs)
    @rule(number=numbers)
    def answer(self, number: int) -> None:
        jobs = list(self.below.tier_jobs)
        job = jobs[number % len(jobs)]
        error = Status.ERROR if number % 16 == 0 else None
        self.below.answer(job, error)
        self.settle()

    @rule()
    def answer_all(self) -> None:
        for _ in range(50):
            for job in list(self.below.tier_jobs):
                if job in self.below.tier_jobs:  # a DROP has writes answered before it
                    self.below.answer(job)
            self.settle()
            self.act_on_all()
            if not self.below.tier_jobs:
                break

    @rule(which=st.integers(0, 1), number=numbers, name=chains, branch=st.integers(0, 1))
    def spoil(self, which: int, number: int, name: str, branch: int) -> None:
        manner, keys = self.below.manners[which], keys_of(name, branch)
        engine = self.pick(number)
        space = SPACES[number % len(SPACES)] if engine is None else engine.space
        one = (fingerprint(space), keys[number % len(keys)], number % space.num_shards)
        (manner.lost if number % 2 else manner.spoilt).add(one)

    @rule(which=st.integers(0, 1), number=numbers)
    def porter_dies(self, which: int, number: int) -> None:
        if number % 4 or not self.below.tiers[which].is_up:
            return
        if number % 8 and len(self.porters) < 2:
            self.lives += 1
            self.porters.append((which, self.lives))
            self.below.down(which, self.lives)
        else:
            self.below.down(which)
        self.settle()

    @rule(which=st.integers(0, 1))
    def porter_starts(self, which: int) -> None:
        if not self.below.tiers[which].is_up:
            self.below.up(which)
            self.settle()

    @rule(number=numbers)
    def stuck_porter_dies(self, number: int) -> None:
        if self.porters and number % 2 == 0:
            self.below.gone(*self.porters.pop(0))
            self.settle()

    @rule(ms=st.sampled_from([1, 20, 500, 2500]))
    def pass_time(self, ms: int) -> None:
        self.below.wait(ms * 1_000_000)
        self.settle()

    @invariant()
    def nobody_else_has_what_is_read_into(self) -> None:
        state = self.below.core._state
        for job in self.below.flying_gets():
            for row in job.parts:
                number, slot = self.below.slot_of(row)
                base = state.arena.extents[ExtentId(number)].base
                assert state.slots.state_of[base + slot] == RESERVED

    def teardown(self) -> None:
        for number in range(len(self.below.tiers)):
            if self.below.tiers[number].is_up:
                self.below.down(number)
        for which in self.porters:
            self.below.gone(*which)
        self.settle()
        super().teardown()
        stats = self.below.core.stats()
        assert not stats["promotions_running"]
        job = self.below.core._state.warming.job
        assert job is None or job.is_over
        assert not stats["prefetches_waiting"]


TierMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTiers = TierMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestTiersLong(TierMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=300,
        stateful_step_count=120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

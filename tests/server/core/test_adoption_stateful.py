"""Random histories of servers that are killed at any point, each followed by the next.

The same engines, copies and operators as in ``test_core_stateful``; besides, the server is killed
between any two effects or within one, engines and copies of its time go on as strangers, and the
next server adopts, with a smaller arena or other extents at times. After each adoption what is held
is exactly what the records say (``reborn.holdings``), and nothing that a stranger may touch is
written, given away or removed before it is gone.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from server.core.adoption import PartyId
from tests.server.core import reborn
from tests.server.core.spaces import SPACES
from tests.server.core.test_core_stateful import CoreMachine, numbers
from tests.server.core.world import config


class AdoptionMachine(CoreMachine):
    @initialize(space=st.integers(0, len(SPACES) - 1), number=numbers)
    def fill(self, space: int, number: int) -> None:
        """Something to adopt."""
        self.start(space)
        self.act_on_all()
        self.save_all(number)

    @rule(number=numbers)
    def save_all(self, number: int) -> None:
        for chain in "xyz":
            self.save(number, chain, number % 2, 12)

    def start(self, space: int) -> None:
        try:
            super().start(space)
        except KeyError:  # its greeting was never answered
            assert self.world.killed

    @rule(number=numbers)
    def kill_server(self, number: int) -> None:
        """At once, or within one of the next effects."""
        if self.world.fuse is None:
            self.world.fuse = number % 4 * (number // 4 % 20)
            if self.world.killed:
                self.world.fuse = None
                self.next_server(number)

    def next_server(self, number: int) -> None:
        old = self.world
        at_rest = old.fuse is None
        before = reborn.held(old.core, rooted=True) if at_rest else None
        there = [one.geometry for one in old.extents.values() if not one.removed]
        there_bytes = sum(one.file_bytes for one in there)
        for jobs in old.stuck.values():  # their copier is none of the next server's
            old.jobs.update((-1 - len(old.jobs), job) for job in jobs)
        old.stuck.clear()
        reborn.kill(old)
        self.alive, self.awaited = [], []
        extents, slots = 7 + number % 5 * (number % 3 - 1), 6 + number % 2 * 3
        size = config(extents, slots)
        settings = reborn.resized(old.config, size.arena_bytes, size.extent_bytes)
        self.world, adoption = reborn.reborn(old, settings)
        found = reborn.held(self.world.core)
        assert found == reborn.holdings(self.world, adoption.kept)
        if there_bytes <= settings.arena_bytes:
            assert set(adoption.dropped.values()) <= {"holds nothing whole"}
            if before is not None:
                assert found == before
        assert adoption.num_records == sum(map(len, found.values()))

    @rule(number=numbers, space=st.integers(0, len(SPACES) - 1))
    def save_and_kill(self, number: int, space: int) -> None:
        """So that most histories have several servers, each with something to adopt."""
        self.start_again(space)
        self.save_all(number)
        self.kill_server(number)

    @invariant()
    def next_server_if_killed(self) -> None:
        if self.world.killed:
            self.next_server(self.world.random.randrange(1 << 16))

    @rule(space=st.integers(0, len(SPACES) - 1))
    def start_again(self, space: int) -> None:
        if not self.alive:
            self.start(space)
            self.act_on_all()

    @precondition(lambda self: self.world.strangers)
    @rule(number=numbers)
    def stranger_leaves(self, number: int) -> None:
        strangers = self.world.strangers
        gone = strangers.pop(number % len(strangers))
        self.world.core.party_gone(PartyId(gone.party), self.world.now_ns)
        self.settle()

    @precondition(lambda self: any(one.writes for one in self.world.strangers))
    @rule(number=numbers)
    def stranger_writes(self, number: int) -> None:
        copiers = [one for one in self.world.strangers if one.writes]
        writes = copiers[number % len(copiers)].writes
        extent, slot, part, label = writes.pop(number % len(writes))
        shadow = self.world.extents[extent]
        assert shadow.records[slot] is None, "a late copy into what is published"
        shadow.content[slot][part] = label if number % 2 else "torn"

    def teardown(self) -> None:
        self.next_server_if_killed()
        self.world.fuse = None
        while self.world.strangers:
            self.stranger_leaves(0)
        assert self.world.core.stats()["parties_awaited"] == 0
        super().teardown()


AdoptionMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAdoption = AdoptionMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestAdoptionLong(AdoptionMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=400,
        stateful_step_count=120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

"""Which chunks go to which tier, and when.

Purpose: by each tier's policy, chunks are handed to its writer: as they are published, ahead of
their eviction, or once they were used often enough. Must not know: how they are written. Runs in:
the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Fingerprint
from server.core.admission import MORE, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.growth import Growth
from server.core.namespaces import Owner
from server.core.tiers.freshness import Freshness
from server.core.tiers.ghosts import Ghosts
from server.core.tiers.policy import Policy
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers
from server.core.tiers.writer import MAX_QUEUED, Writer

CLEAN_PART = 0.15
"""Chunks are written ahead of their eviction once less than this part of the arena is free."""

CLEAN_LEAVES = 64
"""Leaves next to go that are looked at, each with all that it continues."""

CLEAN_NS = 20_000_000
"""Between two looks."""

AHEAD_NODES = 4 * CLEAN_LEAVES
"""Nodes that wait to be written; no more are looked for while there are so many."""

MOST_ADOPTED = MAX_QUEUED // 2
"""Chains of a namespace that are looked at after a restart."""

MOST_USES = 1 << 30

LANE = "cleaner"


class Demotion:
    """All tiers' writers, and who gives them what.

    Args:
        tiers: every tier.
        arena: slots and extents.
        growth: the budget.
        ghosts: remembers what was evicted.
        lanes: long work.
        timers: pauses.
        fault: notes an error of our own.

    Attributes:
        writers: one for each tier that is written to.
        freshness: has them told of what is used.
    """

    def __init__(
        self,
        tiers: Tiers,
        arena: Arena,
        growth: Growth,
        ghosts: Ghosts,
        lanes: Lanes,
        timers: Timers,
        fault: Callable[[Exception], None],
    ) -> None:
        self._arena = arena
        self._growth = growth
        self._ghosts = ghosts
        self._lanes = lanes
        self._timers = timers
        self._fault = fault
        self._timer = 0
        self._pressed: dict[Fingerprint, Owner] = {}
        self.writers = [
            Writer(tier, tiers, arena, lanes, timers, fault)
            for tier in tiers.tiers
            if tier.policy.writes
        ]
        self.freshness = Freshness(self.writers, tiers, arena, lanes, timers, fault)
        self._at_once = self._of(Policy.WRITE_THROUGH)
        self._ahead = self._of(Policy.ON_EVICT)
        self._often = self._of(Policy.AFTER_USES)
        tiers.opened.append(self.pump)
        arena.evicted = self.evicted

    def _of(self, policy: Policy) -> list[Writer]:
        return [writer for writer in self.writers if writer.tier.policy is policy]

    def pump(self, tier: Tier) -> None:
        """A tier may be written to again."""
        for writer in self.writers:
            if writer.tier is tier:
                writer.pump()
        if self._pressed:
            self._look_soon()

    # --- what happens in L1 ---------------------------------------------------------------

    def published(self, owner: Owner, nodes: NDArray[np.int64], shard: int) -> None:
        """A shard of chunks was published, parents before children."""
        for writer in self._at_once:
            writer.offer(owner, nodes)
        if self._ahead:
            self._pressed[owner.fingerprint] = owner
            self._look_soon()

    def adopted(self, owner: Owner, leaves: NDArray[np.int64]) -> None:
        """Chunks of a former server were taken over: what a tier lacks of them is written.

        Args:
            owner: whose.
            leaves: int64[n], the last chunk of each chain.
        """
        for writer in self._at_once:
            writer.offer(owner, leaves[-MOST_ADOPTED:])

    def used(self, owner: Owner, node: int) -> None:
        """A LOOKUP matched up to a node."""
        index = owner.index
        uses = index.uses[node] + 1
        if uses < MOST_USES:
            index.uses[node] = uses
        for writer in self._often:
            # Again after as many more uses, in case that something went wrong the first time.
            if uses % max(1, writer.tier.uses) == 0:
                writer.offer(owner, np.array([node], np.int64))
        if self.writers:
            self.freshness.used(owner, node)

    def evicted(self, owner: Owner, nodes: list[int], slots: list[int]) -> None:
        """Chunks were evicted, and nothing has come to their place yet.

        Args:
            owner: whose.
            nodes: their former nodes, at least one.
            slots: their former slots.
        """
        self._ghosts.note(owner.fingerprint, owner.index.keys_of(np.array(nodes, np.int64)))
        for writer in self.writers:
            if writer.tier.policy is not Policy.AFTER_USES:
                saved = self._arena.slots.tiers[slots] & writer.tier.bit
                lost = len(slots) - int(np.count_nonzero(saved))
                if lost:
                    writer.tier.count("evicted_unsaved", lost)

    # --- ahead of eviction ----------------------------------------------------------------

    def _look_soon(self) -> None:
        if not self._timer:
            self._timer = self._timers.at(self._timers.clock.now_ns + CLEAN_NS, self._look)

    def _look(self) -> None:
        self._timer = 0
        pressed, self._pressed = list(self._pressed.values()), {}
        self._lanes.start(LANE, self._clean(pressed), self._fault)

    def _is_short(self, owner: Owner) -> bool:
        """Whether an owner will soon have to evict for what it stores."""
        free_bytes = max(0, self._growth.free_bytes)
        whole_bytes = free_bytes
        for extents in owner.extents:
            for extent in extents:
                whole_bytes += extent.file_bytes
                if not extent.sealed:
                    free_bytes += len(extent.free) * extent.geometry.slot_bytes
        return free_bytes < CLEAN_PART * whole_bytes

    def _clean(self, owners: list[Owner]) -> Steps:
        """Has those next to be evicted written, and looks again while there are some."""
        for owner in owners:
            yield MORE
            if not self._is_short(owner):
                continue
            index = owner.index
            leaves = owner.leaves.oldest(CLEAN_LEAVES)
            yield MORE
            if index is not owner.index:
                continue
            for writer in self._ahead:
                if not writer.is_free or writer.num_waiting >= AHEAD_NODES:
                    self._pressed[owner.fingerprint] = owner  # until more is published
                elif writer.wants(owner, leaves):
                    self._pressed[owner.fingerprint] = owner
                    self._look_soon()
                yield MORE
                if index is not owner.index:
                    break

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or could be."""
        return all(writer.is_idle for writer in self.writers)

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        values = self.freshness.figures() if self.writers else {}
        for writer in self.writers:
            values[f"tier_{writer.tier.name}_puts_waiting"] = writer.num_waiting
        return values

"""Namespaces that nobody uses any more: forgotten after a time, in lower tiers too.

Purpose: an old revision of a model leaves its chunks behind; without this they go one by one, as
others need their room. Must not know: what an index is, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from server.core.clock import Timers
from server.core.config import SECOND_NS, CoreConfig
from server.core.namespaces import Owner
from server.core.operations import Operations
from server.core.outbox import Outbox
from server.core.roster import Roster

LONGEST_LOOK_NS = 60 * SECOND_NS
"""Between two looks; a shorter time to live is looked after ten times in it."""

NEXT_NS = SECOND_NS
"""From one namespace that is forgotten to the next."""


class Retirement:
    """Looks for them now and then.

    Args:
        config: how long nobody may use one.
        timers: when to look.
        outbox: counters.
        roster: namespaces.
        operations: forgets them, and knows what operators pinned.
    """

    def __init__(
        self,
        config: CoreConfig,
        timers: Timers,
        outbox: Outbox,
        roster: Roster,
        operations: Operations,
    ) -> None:
        self._timers = timers
        self._outbox = outbox
        self._roster = roster
        self._operations = operations
        self._ttl_ns = int(config.namespace_ttl_s * SECOND_NS)
        self._begun_ns = 0
        if self._ttl_ns:
            timers.at(0, self._begin)

    def _begin(self) -> None:
        self._begun_ns = self._timers.clock.now_ns
        self._look_again(self._pause_ns)

    @property
    def _pause_ns(self) -> int:
        return min(LONGEST_LOOK_NS, max(1, self._ttl_ns // 10))

    def _look_again(self, pause_ns: int) -> None:
        self._timers.at(self._timers.clock.now_ns + pause_ns, self._look)

    def _look(self) -> None:
        now_ns = self._timers.clock.now_ns
        pinned = {pin.owner.fingerprint for pin in self._operations.pins.values()}
        due: list[Owner] = []
        for owner in self._roster.owners.values():
            if owner.is_wanted or owner.fingerprint in pinned:
                owner.kept_ns = now_ns
            elif self._idle_ns(owner, now_ns) >= self._ttl_ns:
                due.append(owner)
        if due:
            # One at a time: whatever it takes to forget one, others are served in between.
            due.sort(key=lambda one: self._idle_ns(one, now_ns), reverse=True)
            self._outbox.counters["retired_namespaces"] += 1
            self._outbox.counters["retired_chunks"] += self._operations.retire(due[0])
            # What somebody still maps outlives this: then it is the others' turn, not its again.
            due[0].kept_ns = now_ns
        self._look_again(NEXT_NS if len(due) > 1 else self._pause_ns)

    def _idle_ns(self, owner: Owner, now_ns: int) -> int:
        """Time since anybody used it, wanted it or kept it, at most since the server's start."""
        return now_ns - max(owner.used_ns, owner.kept_ns, self._begun_ns)

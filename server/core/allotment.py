"""Quotas at work: changes are kept for the next server, and who holds too much is brought down.

Purpose: what a change of a quota sets going. Somebody above a new limit loses its own oldest
chunks in slices; what is in use at that time is looked at again every second. Must not know: how
messages travel, files. Runs in: the loop thread; ``restore`` in the main thread before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol.errors import RequestError
from protocol.quotas import QuotaChange
from server.core.accounts import Account
from server.core.admission import MORE, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.effects import KeepQuotas
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.quotas import Quotas, name_of
from server.core.reclaim import Reclaimer
from server.core.roster import Roster
from server.core.tenantleaves import Whose
from server.core.tierquotas import TierQuotas

LANE = "quotas"
AGAIN_NS = SECOND_NS
"""After how long those that are still above their limit are looked at again."""

EVICT_CHUNKS = 32
"""Chunks evicted in one slice for a salt above its limit."""


class Allotment:
    """Applies quotas.

    Args:
        quotas: what is set.
        below: the same for lower tiers.
        roster: namespaces.
        arena: evicts a salt's chunks.
        reclaimer: takes a namespace's extents.
        timers: for another look.
        lanes: long work.
        outbox: where effects go.
        fault: notes an error of our own.
    """

    def __init__(
        self,
        quotas: Quotas,
        below: TierQuotas,
        roster: Roster,
        arena: Arena,
        reclaimer: Reclaimer,
        timers: Timers,
        lanes: Lanes,
        outbox: Outbox,
        fault: Callable[[Exception], None],
    ) -> None:
        self._quotas = quotas
        quotas.below = below
        self._roster = roster
        self._arena = arena
        self._reclaimer = reclaimer
        self._timers = timers
        self._lanes = lanes
        self._outbox = outbox
        self._fault = fault
        self._is_running = False
        self._timer = 0

    def change(self, change: QuotaChange) -> None:
        """Sets one tenant's quota, keeps all of them, and enforces what is new.

        Args:
            change: what is to hold.

        Raises:
            RequestError: see ``Quotas.change``.
        """
        self._quotas.change(change)
        self._outbox.add(KeepQuotas(tuple(self._quotas.changes())))
        self.enforce()

    def restore(self, kept: Iterable[QuotaChange]) -> list[str]:
        """Sets what a former server had set, as far as nothing else is set for that tenant.

        Args:
            kept: what it was.

        Returns:
            Why some of it could not be set, for the log.
        """
        known = {name_of(one) for one in self._quotas.changes()}
        refused = []
        for one in kept:
            if name_of(one) in known:
                continue
            try:
                self._quotas.change(one)
            except RequestError as error:
                where = f" in {one.tier}" if one.tier else ""
                refused.append(f"{one.kind.name.lower()} {one.tenant.hex()}{where}: {error}")
        return refused

    def enforce(self) -> None:
        """Begins to bring down who is above its limit; nothing where nobody is."""
        if not self._is_running and (self._over() or self._salts_over()):
            self._is_running = True
            self._lanes.start(LANE, self._bring_down(), self._failed)

    def _failed(self, error: Exception) -> None:
        self._is_running = False
        self._fault(error)

    def _over(self) -> list[Owner]:
        """Namespaces above their limit."""
        owners = self._roster.owners
        named = [owners[name] for name in self._quotas.namespaces if name in owners]
        return [owner for owner in named if (self._quotas.space_room(owner) or 0) < 0]

    def _salts_over(self) -> list[Account]:
        accounts = self._quotas.accounts.by_number.values()
        return [one for one in accounts if self._quotas.excess_bytes(one.number)]

    def _bring_down(self) -> Steps:
        yield MORE
        for owner in self._over():
            yield from self._reclaimer.trim(owner)
        for account in self._salts_over():
            for name in list(account.held_in):
                # A namespace may go as a whole while another one's chunks do in slices.
                if name not in self._roster.owners:
                    continue
                owner = self._roster.owners[name]
                while self._evict(owner, account):
                    yield MORE
        self._is_running = False
        if not self._timer and (self._over() or self._salts_over()):
            self._timer = self._timers.at(self._timers.clock.now_ns + AGAIN_NS, self._again)

    def _evict(self, owner: Owner, account: Account) -> int:
        """Evicts a few chunks of an account above its limit; how many went."""
        excess_bytes = self._quotas.excess_bytes(account.number)
        count = min(EVICT_CHUNKS, -(-excess_bytes // sum(owner.slot_bytes)))
        return self._arena.evict(owner, count, account.number, Whose.OWN) if count else 0

    def _again(self) -> None:
        self._timer = 0
        self.enforce()

"""Namespaces that only tiers have: CLEAR of all reaches them, too.

Purpose: after a restart a tier may have namespaces that no engine has registered yet. A tier that
can list is asked for them, and what it names is forgotten as anything else is. Must not know: L1,
who asked. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from protocol.ids import ID_BYTES, Fingerprint
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.effects import TierId
from server.core.namespaces import Owner
from server.core.tiers.forgetting import Forgetting
from server.core.tiers.listed import Listed
from server.core.tiers.parts import PAGE_CHUNKS
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers

LIST_NS = 2 * SECOND_NS
"""Longest wait for what tiers list; half of the time to a deadline, if that is less."""

Over = Callable[[list[Fingerprint], frozenset[TierId]], None]

_NOBODY = Fingerprint(bytes(ID_BYTES))


@dataclass(eq=False)
class ClearAll:
    """One CLEAR of all.

    Attributes:
        known: namespaces that were cleared already.
        over: see ``Unknown.clear``; called once.
        names: namespaces that tiers named besides.
        asked: tiers that have not answered.
        short: tiers that did not say all that they have.
        timer: its end.
        is_over: whatever is answered now comes too late.
    """

    known: set[Fingerprint]
    over: Over
    names: list[Fingerprint] = field(default_factory=list)
    asked: set[TierId] = field(default_factory=set)
    short: set[TierId] = field(default_factory=set)
    timer: int = 0
    is_over: bool = False


class Unknown:
    """Finds them.

    Args:
        tiers: who is asked.
        forgetting: has tiers forget.
        timers: the end of a wait.
        owners: namespaces that are known here, by name.
    """

    def __init__(
        self,
        tiers: Tiers,
        forgetting: Forgetting,
        timers: Timers,
        owners: Mapping[Fingerprint, Owner],
    ) -> None:
        self._tiers = tiers
        self._forgetting = forgetting
        self._timers = timers
        self._owners = owners

    def clear(self, known: set[Fingerprint], deadline_ns: int, over: Over) -> None:
        """Has tiers forget all namespaces but those that are being forgotten already.

        Args:
            known: those.
            deadline_ns: of who asked, 0 for none.
            over: told the names of the others, and the tiers that could not say all that they
                have; after LIST_NS at most, maybe before this returns.
        """
        listing = [tier for tier in self._tiers.tiers if tier.policy.writes and tier.lists]
        this = ClearAll(known, over, asked={tier.number for tier in listing})
        wait_ns = LIST_NS
        if deadline_ns:
            wait_ns = max(0, min(wait_ns, (deadline_ns - self._timers.clock.now_ns) // 2))
        due_ns = self._timers.clock.now_ns + wait_ns
        this.timer = self._timers.at(due_ns, partial(self._end, this))
        for tier in listing:
            ended = partial(self._listed, this, tier)
            self._tiers.list_there(tier, Listed.NAMESPACES, _NOBODY, ended)
        if not listing:
            self._end(this)

    def _listed(self, this: ClearAll, tier: Tier, listed: bytes | None) -> None:
        if this.is_over:
            return
        this.asked.discard(tier.number)
        found = listed or b""
        names = [
            Fingerprint(found[at : at + ID_BYTES])
            for at in range(0, len(found) - ID_BYTES + 1, ID_BYTES)
        ]
        if listed is None or len(names) >= PAGE_CHUNKS:
            this.short.add(tier.number)
        for name in names:
            if name not in this.known:
                self._forget(this, tier, name)
        if not this.asked:
            self._end(this)

    def _forget(self, this: ClearAll, tier: Tier, name: Fingerprint) -> None:
        owner = self._owners.get(name)
        if owner is not None:  # an engine came meanwhile: it is only below that it is cleared
            self._forgetting.clear(owner)
        elif self._forgetting.has_place(name):
            self._forgetting.clear_name(name)
        else:
            this.short.add(tier.number)
            return
        this.known.add(name)
        this.names.append(name)

    def _end(self, this: ClearAll) -> None:
        if this.is_over:
            return
        this.is_over = True
        self._timers.cancel(this.timer)
        this.over(this.names, frozenset(this.short | this.asked))

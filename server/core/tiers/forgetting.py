"""What tiers are still to forget: CLEAR and DELETE reach below L1.

Purpose: each tier that is written to forgets what CLEAR and DELETE name, behind the writes that are
under way; until it said that it did, that namespace is neither read from it nor written to it. A
tier that cannot be asked is told later. What is owed is written down, so that the next server owes
it should this one be killed; who asked may wait for all of that, not for long. Must not know: L1,
who asked. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from protocol.ids import ID_BYTES, Fingerprint
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.effects import DropOwed, KeepOwed, TierId
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.tiers.parts import MAX_KEYS
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers

MAX_OWED_KEYS = 1 << 18
"""Chunks of one namespace that a tier is still to forget; beyond that all of the namespace goes."""

MAX_OWED = 4096
"""Namespaces that a tier is still to forget something of."""

RETRY_NS = SECOND_NS

WAIT_NS = 5 * SECOND_NS
"""Longest wait of who asked for tiers that can be asked."""


@dataclass
class Owed:
    """What a tier is still to forget of one namespace.

    Attributes:
        shards: parts of a chunk.
        is_all: all of it.
        keys: 16 bytes per chunk.
        told: what of it the tier was told and has not answered, empty for all of the namespace;
            None while it was told nothing.
        asked: serial of the last KeepOwed.
        kept: of the last one that has ended.
    """

    shards: int
    is_all: bool = False
    keys: bytearray = field(default_factory=bytearray)
    told: bytes | None = None
    asked: int = 0
    kept: int = 0


@dataclass(eq=False)
class Waiting:
    """Somebody who asked.

    Attributes:
        names: of the namespaces.
        over: called once, with how many tiers have not forgotten.
        timer: its end.
        short: tiers that may have more, whatever they forget of these.
    """

    names: Sequence[Fingerprint]
    over: Callable[[int], None]
    timer: int = 0
    short: frozenset[TierId] = frozenset()


class Forgetting:
    """What each tier is still to forget.

    Args:
        tiers: whom to tell; its ``is_barred`` is set.
        timers: for another try, and for the end of a wait.
        outbox: effects.

    Attributes:
        freed: called with a tier that has forgotten all that it was to of some namespace.
        begun: called with a namespace of which something is being forgotten.
    """

    def __init__(self, tiers: Tiers, timers: Timers, outbox: Outbox) -> None:
        self._tiers = tiers
        self._timers = timers
        self._outbox = outbox
        self._serials = count(1)
        self._waiting: list[Waiting] = []
        self._owed: list[OrderedDict[Fingerprint, Owed]] = [OrderedDict() for _ in tiers.tiers]
        self._timer = [0 for _ in tiers.tiers]
        self.freed: Callable[[Tier], None] = lambda tier: None
        self.begun: Callable[[Owner], None] = lambda owner: None
        tiers.is_barred = self.is_barred
        tiers.opened.append(self._tell_all)
        tiers.closed.append(lambda tier: self._settle())

    @property
    def tiers(self) -> list[Tier]:
        """All of them."""
        return self._tiers.tiers

    @property
    def is_needed(self) -> bool:
        """Whether there is any tier that must be told."""
        return any(tier.policy.writes for tier in self._tiers.tiers)

    def is_barred(self, tier: Tier, fingerprint: Fingerprint) -> bool:
        """Whether a tier is still to forget something of a namespace."""
        return fingerprint in self._owed[tier.number]

    def clear(self, owner: Owner) -> None:
        """Has all of a namespace forgotten."""
        self.begun(owner)
        self.clear_name(owner.fingerprint, owner.num_shards)

    def has_place(self, fingerprint: Fingerprint) -> bool:
        """Whether a namespace that may be known to tiers only can be owed.

        Half of the places are for those that are known here: names cost whoever sends them nothing.
        """
        return all(
            fingerprint in mine or len(mine) < MAX_OWED // 2
            for tier in self._tiers.tiers
            if tier.policy.writes
            for mine in [self._owed[tier.number]]
        )

    def clear_name(self, fingerprint: Fingerprint, shards: int = 1) -> None:
        """The same of one that may be known to tiers only.

        Args:
            fingerprint: of the namespace.
            shards: parts of a chunk, if known: all of them go.
        """
        for tier in self._tiers.tiers:
            if tier.policy.writes:
                owed = self._owe(tier, fingerprint, shards)
                owed.is_all = True
                owed.keys.clear()
                self._begin(tier, fingerprint, owed)

    def delete(self, owner: Owner, keys: bytes) -> None:
        """Has chunks forgotten.

        Args:
            owner: the namespace.
            keys: 16 bytes per chunk.
        """
        if keys:
            self.begun(owner)
            self.delete_name(owner.fingerprint, keys, owner.num_shards)

    def room_keys(self, fingerprint: Fingerprint) -> int:
        """So many more chunks of a namespace can be owed before all of it would have to go."""
        owed = [
            mine[fingerprint]
            for tier, mine in zip(self._tiers.tiers, self._owed, strict=True)
            if tier.policy.writes and fingerprint in mine
        ]
        most = max((len(one.keys) + len(one.told or b"") for one in owed), default=0)
        return MAX_OWED_KEYS - most // ID_BYTES

    def delete_name(self, fingerprint: Fingerprint, keys: bytes, shards: int) -> None:
        """The same of a namespace that may be known to tiers only.

        Args:
            fingerprint: of it.
            keys: 16 bytes per chunk, one at least.
            shards: parts 0 to ``shards - 1`` of each go.
        """
        for tier in self._tiers.tiers:
            if not tier.policy.writes:
                continue
            owed = self._owe(tier, fingerprint, shards)
            if not owed.is_all:
                owed.keys += keys
            if len(owed.keys) > MAX_OWED_KEYS * ID_BYTES:
                owed.is_all = True
                owed.keys.clear()
                tier.count("deletes_widened")
            self._begin(tier, fingerprint, owed)

    def owes(self, number: TierId, fingerprint: Fingerprint, shards: int, keys: bytes) -> None:
        """Takes over what a former server wrote down, also for a tier that is only read by now.

        Args:
            number: of the tier.
            fingerprint: of the namespace.
            shards: parts of a chunk.
            keys: 16 bytes per chunk; empty for all of the namespace.
        """
        tier = self._tiers.tiers[number]
        owed = self._owe(tier, fingerprint, shards)
        owed.is_all = not keys
        owed.keys += keys
        self._tell(tier, fingerprint)

    def _owe(self, tier: Tier, fingerprint: Fingerprint, shards: int) -> Owed:
        mine = self._owed[tier.number]
        owed = mine.get(fingerprint)
        if owed is None:
            if len(mine) >= MAX_OWED:
                lost, _ = mine.popitem(last=False)
                self._outbox.add(DropOwed(tier.number, lost))
                tier.count("drops_lost")
            owed = mine[fingerprint] = Owed(shards)
        # A former server's file may not have known, and a disk names the parts that it has alone.
        owed.shards = max(owed.shards, shards)
        return owed

    def _begin(self, tier: Tier, fingerprint: Fingerprint, owed: Owed) -> None:
        owed.asked = next(self._serials)
        keys = bytes(owed.keys)
        if owed.told is not None:
            keys = owed.told and owed.told + keys
        if owed.is_all:
            keys = b""
        self._outbox.add(KeepOwed(tier.number, fingerprint, owed.asked, owed.shards, keys))
        tier.cancel_puts(fingerprint)
        self._tell(tier, fingerprint)

    def _tell_all(self, tier: Tier) -> None:
        for fingerprint in list(self._owed[tier.number]):
            self._tell(tier, fingerprint)

    def _tell(self, tier: Tier, fingerprint: Fingerprint) -> None:
        owed = self._owed[tier.number].get(fingerprint)
        if owed is None or owed.told is not None:
            return
        if not tier.is_open:
            return  # it is told when it may be asked again
        is_all, keys = owed.is_all, bytes(owed.keys[: MAX_KEYS * ID_BYTES])
        owed.is_all = False
        del owed.keys[: MAX_KEYS * ID_BYTES]
        owed.told = told = b"" if is_all else keys

        def ended(is_done: bool) -> None:
            owed.told = None
            if not is_done:
                owed.is_all = owed.is_all or is_all
                owed.keys[:0] = keys
                self._try_later(tier)
            elif owed.is_all or owed.keys:
                self._tell(tier, fingerprint)
            elif self._owed[tier.number].get(fingerprint) is owed:
                del self._owed[tier.number][fingerprint]
                self._outbox.add(DropOwed(tier.number, fingerprint))
                self._settle()
                self.freed(tier)
                self._tell_next(tier)

        self._tiers.drop(tier, fingerprint, told, owed.shards, ended)

    def _tell_next(self, tier: Tier) -> None:
        """One more of those that found too many DROPs under way."""
        for fingerprint, owed in self._owed[tier.number].items():
            if owed.told is None:
                self._tell(tier, fingerprint)
                return

    def _try_later(self, tier: Tier) -> None:
        at = tier.number
        self._timers.cancel(self._timer[at])
        self._timer[at] = self._timers.at(
            self._timers.clock.now_ns + RETRY_NS, lambda: self._tell_all(tier)
        )

    # --- who waits ------------------------------------------------------------------------

    def wait(
        self,
        names: Sequence[Fingerprint],
        deadline_ns: int,
        over: Callable[[int], None],
        short: frozenset[TierId] = frozenset(),
    ) -> None:
        """Waits until tiers that can be asked have forgotten, and what others owe is written down.

        Args:
            names: of the namespaces.
            deadline_ns: of who asked, 0 for none: the wait ends well before.
            over: told how many tiers have not forgotten yet; after WAIT_NS at most, maybe before
                this returns.
            short: tiers that are counted whatever they forget.
        """
        waiting = Waiting(names, over, short=short)
        if self._is_over(waiting):
            over(self._pending(waiting))
            return
        now_ns, wait_ns = self._timers.clock.now_ns, WAIT_NS
        if deadline_ns:
            wait_ns = max(0, min(wait_ns, (deadline_ns - now_ns) * 3 // 4))
        waiting.timer = self._timers.at(now_ns + wait_ns, lambda: self._end(waiting))
        self._waiting.append(waiting)

    def kept(self, number: TierId, fingerprint: Fingerprint, serial: int) -> None:
        """What is owed is written down, or cannot be."""
        owed = self._owed[number].get(fingerprint)
        if owed is not None:
            owed.kept = max(owed.kept, serial)
            self._settle()

    def _is_over(self, waiting: Waiting) -> bool:
        for tier, mine in zip(self._tiers.tiers, self._owed, strict=True):
            for name in waiting.names:
                owed = mine.get(name)
                if owed is not None and (tier.is_open or owed.kept < owed.asked):
                    return False
        return True

    def _pending(self, waiting: Waiting) -> int:
        return sum(
            number in waiting.short or any(name in mine for name in waiting.names)
            for number, mine in enumerate(self._owed)
        )

    def _settle(self) -> None:
        for waiting in [one for one in self._waiting if self._is_over(one)]:
            self._end(waiting)

    def _end(self, waiting: Waiting) -> None:
        self._timers.cancel(waiting.timer)
        self._waiting.remove(waiting)
        waiting.over(self._pending(waiting))

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        return {
            f"tier_{tier.name}_drops_owed": len(owed)
            for tier, owed in zip(self._tiers.tiers, self._owed, strict=True)
        }

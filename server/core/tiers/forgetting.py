"""What tiers are still to forget: CLEAR and DELETE reach below L1.

Purpose: each tier that is written to forgets what CLEAR and DELETE name, behind the writes that are
under way; until it said that it did, that namespace is neither read from it nor written to it. A
tier that cannot be asked is told later. Must not know: L1, who asked. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.ids import ID_BYTES, Fingerprint
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.namespaces import Owner
from server.core.tiers.parts import MAX_KEYS
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers

MAX_OWED_KEYS = 1 << 18
"""Chunks of one namespace that a tier is still to forget; beyond that all of the namespace goes."""

MAX_OWED = 4096
"""Namespaces that a tier is still to forget something of."""

RETRY_NS = SECOND_NS


@dataclass
class Owed:
    """What a tier is still to forget of one namespace.

    Attributes:
        shards: parts of a chunk.
        is_all: all of it.
        keys: 16 bytes per chunk.
        is_told: it was told something and has not answered.
    """

    shards: int
    is_all: bool = False
    keys: bytearray = field(default_factory=bytearray)
    is_told: bool = False


class Forgetting:
    """What each tier is still to forget.

    Args:
        tiers: whom to tell; its ``is_barred`` is set.
        timers: for another try.

    Attributes:
        freed: called with a tier that has forgotten all that it was to of some namespace.
        begun: called with a namespace of which something is being forgotten.
    """

    def __init__(self, tiers: Tiers, timers: Timers) -> None:
        self._tiers = tiers
        self._timers = timers
        self._owed: list[OrderedDict[Fingerprint, Owed]] = [OrderedDict() for _ in tiers.tiers]
        self._timer = [0 for _ in tiers.tiers]
        self.freed: Callable[[Tier], None] = lambda tier: None
        self.begun: Callable[[Owner], None] = lambda owner: None
        tiers.is_barred = self.is_barred
        tiers.opened.append(self._tell_all)

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
        for tier in self._tiers.tiers:
            if tier.policy.writes:
                owed = self._owe(tier, owner)
                owed.is_all = True
                owed.keys.clear()
                self._begin(tier, owner.fingerprint)

    def delete(self, owner: Owner, keys: bytes) -> None:
        """Has chunks forgotten.

        Args:
            owner: the namespace.
            keys: 16 bytes per chunk.
        """
        if keys:
            self.begun(owner)
        for tier in self._tiers.tiers if keys else ():
            if not tier.policy.writes:
                continue
            owed = self._owe(tier, owner)
            if not owed.is_all:
                owed.keys += keys
            if len(owed.keys) > MAX_OWED_KEYS * ID_BYTES:
                owed.is_all = True
                owed.keys.clear()
                tier.count("deletes_widened")
            self._begin(tier, owner.fingerprint)

    def _owe(self, tier: Tier, owner: Owner) -> Owed:
        mine = self._owed[tier.number]
        owed = mine.get(owner.fingerprint)
        if owed is None:
            if len(mine) >= MAX_OWED:
                mine.popitem(last=False)
                tier.count("drops_lost")
            owed = mine[owner.fingerprint] = Owed(owner.num_shards)
        return owed

    def _begin(self, tier: Tier, fingerprint: Fingerprint) -> None:
        tier.cancel_puts(fingerprint)
        self._tell(tier, fingerprint)

    def _tell_all(self, tier: Tier) -> None:
        for fingerprint in list(self._owed[tier.number]):
            self._tell(tier, fingerprint)

    def _tell(self, tier: Tier, fingerprint: Fingerprint) -> None:
        owed = self._owed[tier.number].get(fingerprint)
        if owed is None or owed.is_told:
            return
        if not tier.is_open:
            return  # it is told when it may be asked again
        is_all, keys = owed.is_all, bytes(owed.keys[: MAX_KEYS * ID_BYTES])
        owed.is_all = False
        del owed.keys[: MAX_KEYS * ID_BYTES]
        owed.is_told = True

        def ended(is_done: bool) -> None:
            owed.is_told = False
            if not is_done:
                owed.is_all = owed.is_all or is_all
                owed.keys[:0] = keys
                self._try_later(tier)
            elif owed.is_all or owed.keys:
                self._tell(tier, fingerprint)
            elif self._owed[tier.number].get(fingerprint) is owed:
                del self._owed[tier.number][fingerprint]
                self.freed(tier)

        self._tiers.drop(tier, fingerprint, b"" if is_all else keys, owed.shards, ended)

    def _try_later(self, tier: Tier) -> None:
        at = tier.number
        self._timers.cancel(self._timer[at])
        self._timer[at] = self._timers.at(
            self._timers.clock.now_ns + RETRY_NS, lambda: self._tell_all(tier)
        )

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        return {
            f"tier_{tier.name}_drops_owed": len(owed)
            for tier, owed in zip(self._tiers.tiers, self._owed, strict=True)
        }

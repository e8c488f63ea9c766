"""One question to a tier.

Must not know: tiers, who asks. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from server.core.effects import (
    Asked,
    TierDrop,
    TierGet,
    TierHealth,
    TierProbe,
    TierPut,
)

Over = Callable[[bytes | None, int], None]
"""Told the statuses, None for an error of the whole, and a probe's count."""


@dataclass
class Job:
    """One question.

    Attributes:
        effect: as it is sent.
        over: called once, when it is answered or never will be.
        num_bytes: of values.
        begun_ns: when it was sent, 0 before.
        flow: of a read: who waits for it.
    """

    effect: TierProbe | TierGet | TierPut | TierDrop | TierHealth | Asked
    over: Over
    num_bytes: int = 0
    begun_ns: int = 0
    flow: Hashable = None

    @property
    def is_read(self) -> bool:
        """Whether somebody waits for it."""
        return isinstance(self.effect, TierGet | TierProbe)

    @property
    def touches_memory(self) -> bool:
        """Whether it uses slots of the arena."""
        return isinstance(self.effect, TierGet | TierPut)

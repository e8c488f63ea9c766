"""What lower tiers say that they have of a prefix, for an operator who asks.

Purpose: each tier that may be asked is, piece by piece of the prefix, for a bounded time; nothing
is loaded, and what a tier says is a hint. Must not know: L1, who asked, messages. Runs in: the loop
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from protocol.ids import ID_BYTES
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.effects import TierId
from server.core.namespaces import Owner
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers

ASK_NS = 2 * SECOND_NS
"""Longest wait for what tiers say; half of the time to a deadline, if that is less."""

PIECE_CHUNKS = 512
"""Asked of a tier at once: engines' own reads wait for no more than one such question."""

Over = Callable[[dict[str, int]], None]


@dataclass(eq=False)
class _Question:
    """About one prefix.

    Attributes:
        owner: the namespace.
        keys: 16 bytes for each chunk.
        over: see ``Holding.ask``; called once.
        found: leading chunks that a tier has, by its name.
        asked: tiers that have not answered.
        timer: its end.
        is_over: whatever is answered now comes too late.
    """

    owner: Owner
    keys: bytes
    over: Over
    found: dict[str, int] = field(default_factory=dict)
    asked: set[TierId] = field(default_factory=set)
    timer: int = 0
    is_over: bool = False


class Holding:
    """Asks them.

    Args:
        tiers: who is asked.
        timers: the end of a wait.
    """

    def __init__(self, tiers: Tiers, timers: Timers) -> None:
        self._tiers = tiers
        self._timers = timers

    def ask(self, owner: Owner, keys: bytes, deadline_ns: int, over: Over) -> None:
        """Asks every tier that may be asked now how much of a prefix it has.

        Args:
            owner: the namespace.
            keys: 16 bytes for each chunk, from chunk 0 on.
            deadline_ns: of who asks, 0 for none.
            over: told how many leading chunks each has, by its name, without those that could not
                be asked or did not answer; after ASK_NS at most, maybe before this returns.
        """
        readable = self._tiers.readable(owner.fingerprint)
        this = _Question(owner, keys, over, asked={tier.number for tier in readable})
        wait_ns = ASK_NS
        if deadline_ns:
            wait_ns = max(0, min(wait_ns, (deadline_ns - self._timers.clock.now_ns) // 2))
        due_ns = self._timers.clock.now_ns + wait_ns
        this.timer = self._timers.at(due_ns, partial(self._end, this))
        for tier in readable:
            self._probe(this, tier, 0)
        if not readable:
            self._end(this)

    def _probe(self, this: _Question, tier: Tier, first: int) -> None:
        piece = this.keys[first * ID_BYTES : (first + PIECE_CHUNKS) * ID_BYTES]
        told = partial(self._told, this, tier, first, len(piece) // ID_BYTES)
        self._tiers.probe(tier, this.owner, piece, told)

    def _told(
        self, this: _Question, tier: Tier, first: int, num_asked: int, count: int | None
    ) -> None:
        if this.is_over:
            return
        if count is not None:
            upto = first + min(count, num_asked)
            if upto == first + num_asked and upto * ID_BYTES < len(this.keys):
                self._probe(this, tier, upto)
                return
            this.found[tier.name] = upto
        this.asked.discard(tier.number)
        if not this.asked:
            self._end(this)

    def _end(self, this: _Question) -> None:
        if this.is_over:
            return
        this.is_over = True
        self._timers.cancel(this.timer)
        this.over(this.found)

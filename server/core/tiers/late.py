"""A miss whose reason is not known yet: the tiers were still being asked when the wait was over.

Purpose: whether chunks were too late, or nowhere, is what the answer says that comes after the
deadline; until then the miss is counted nowhere. Must not know: requests, messages. Runs in: the
loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.core.tiers.misses import Miss
from server.core.tiers.runs import Run

MAX_LATE = 256
"""Misses that wait for one run; of further ones the deadline is the reason."""


@dataclass(eq=False)
class Late:
    """One such miss. A ``server.core.tiers.runs.Passenger``.

    Attributes:
        note: counts it, with the reason; None where no tier has the chunks.
        is_patient: nothing is evicted for it.
        flow: for nobody.
    """

    note: Callable[[Miss | None], None]
    is_patient: bool = True
    flow: None = None

    def moved(self, run: Run) -> bool:
        """A tier has them, and they came too late."""
        self.note(Miss.DEADLINE)
        return False

    def ended(self, run: Run) -> None:
        """Nothing came."""
        self.note(_why(run))


def defer(run: Run, note: Callable[[Miss | None], None]) -> None:
    """Has a miss counted once it is known why.

    Args:
        run: that was waited for.
        note: counts it.
    """
    is_known = run.is_over or run.count or run.frontier
    if is_known or sum(isinstance(one, Late) for one in run.passengers) >= MAX_LATE:
        note(_why(run) if run.is_over else Miss.DEADLINE)
        return
    run.passengers[Late(note)] = None


def _why(run: Run) -> Miss | None:
    """No tier has anything of it; or something went wrong, or came too late."""
    is_nowhere = not run.count and not run.frontier and run.why is None and not run.is_cleared
    return None if is_nowhere else Miss.DEADLINE

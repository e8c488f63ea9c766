"""For how long a tier's work has been under way without any of it coming to an end.

A porter that is frozen looks alive to the kernel; the server kills one after ten seconds at a job.
Whoever probes sees it sooner here. Of copiers STATUS tells it. Must not know: what is read and
written. Runs in: the watching thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_TIER_ENDED = ("get_bytes", "put_bytes", "absent", "errors", "corrupt", "no_room", "puts_dropped")
"""What rises when a piece of work ends, well or not."""


class Stall:
    """One kind of work."""

    def __init__(self) -> None:
        self._ended = -1
        self._since_s: float | None = None

    def note(self, is_busy: bool, ended: int, at_s: float) -> float:
        """Takes an answer in.

        Args:
            is_busy: whether work is under way.
            ended: a sum that rises whenever some of it ends.
            at_s: when, of the monotonic clock.

        Returns:
            Seconds since when work has been seen under way and none has ended; 0 for none.
        """
        if not is_busy:
            self._since_s = None
        elif self._since_s is None or ended != self._ended:
            self._since_s = at_s
        self._ended = ended
        return 0.0 if self._since_s is None else at_s - self._since_s


class Stalls:
    """Each tier's jobs, by its name with ``tier_`` before it."""

    def __init__(self) -> None:
        self._all: dict[str, Stall] = {}

    def note(self, values: Mapping[str, int], at_s: float) -> dict[str, float]:
        """Takes an answer in.

        Args:
            values: the counters; empty without an answer.
            at_s: when, of the monotonic clock.

        Returns:
            Seconds by kind of work, as ``Stall.note`` has them.
        """
        for tier in _tiers(values):
            self._all.setdefault(tier, Stall())
        told: dict[str, float] = {}
        for name, stall in self._all.items():
            # Forgetting a whole namespace may take minutes, in which no byte moves.
            is_forgetting = values.get(f"{name}_drops_owed", 0) > 0
            is_busy = values.get(f"{name}_jobs", 0) > 0 and not is_forgetting
            ends = tuple(f"{name}_{end}" for end in _TIER_ENDED)
            told[name] = stall.note(is_busy, sum(values.get(end, 0) for end in ends), at_s)
        return told


def _tiers(values: Mapping[str, int]) -> Iterable[str]:
    return [
        name[: -len("_jobs")]
        for name in values
        if name.startswith("tier_") and name.endswith("_jobs")
    ]

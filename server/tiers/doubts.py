"""Puts whose end nobody saw, and removals that must be done again for that.

Purpose: a put that was given up may still be done, when a store that stood still goes on and reads
what lies in its socket. Had the value been removed in between, it would be found afterwards. So a
removal of what is in doubt holds only if it is begun when the store has answered for a while;
earlier ones are done, too, and end with an error, so that whoever asked for them asks again. Must
not know: any store. Runs in: the porter, any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from server.tiers.interface import Name, TierError

SETTLE_S = 60.0
"""What was sent before a store answered has come by then, or never will: its connection is closed,
and the kernel tries what it still has of one again and again, but no longer than that."""

KEPT_S = 3600.0
"""So long a doubt is kept after that, if there is room: a removal in many calls that was begun
before may end later, and must be done again."""

LIMIT = 4096
"""Names in doubt; with more of them everything is."""

_ANY = Name(b"", b"", 0)


@dataclass
class Doubt:
    """About one name.

    Attributes:
        since_s: when the store was first seen to answer after the put; None while it was not.
        is_removed: whether a removal was done since the put.
    """

    since_s: float | None = None
    is_removed: bool = False


@dataclass
class Removal:
    """One under way.

    Attributes:
        begun_s: when it was; a removal in several calls was begun with the first.
    """

    begun_s: float


class Doubts:
    """Names in doubt.

    Args:
        clock: seconds, never backwards.
        settle_s: see ``SETTLE_S``.
        limit: see ``LIMIT``.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        settle_s: float = SETTLE_S,
        limit: int = LIMIT,
    ) -> None:
        self._clock = clock
        self._settle_s = settle_s
        self._limit = limit
        self._lock = threading.Lock()
        self._doubts: dict[Name, Doubt] = {}

    def note(self, names: Iterable[Name]) -> None:
        """Puts ended without the store's word that they are done, or are not."""
        with self._lock:
            if len(self._doubts) >= self._limit:
                self._forget_settled(0.0)
            for name in names:
                is_known = name in self._doubts or len(self._doubts) < self._limit
                self._doubts[name if is_known else _ANY] = Doubt()

    def answered(self) -> None:
        """The store answers, all of it: what was sent before comes soon or never."""
        with self._lock:
            now_s = self._clock()
            for doubt in self._doubts.values():
                if doubt.since_s is None:
                    doubt.since_s = now_s
            self._forget_settled(KEPT_S)

    def _forget_settled(self, kept_s: float) -> None:
        before_s = self._clock() - self._settle_s - kept_s
        for name, doubt in list(self._doubts.items()):
            if doubt.since_s is not None and doubt.since_s <= before_s:
                del self._doubts[name]

    @contextmanager
    def removal(self, kind: str, concerns: Callable[[Name], bool]) -> Iterator[Removal]:
        """For the time of a removal.

        Args:
            kind: of the tier, for people.
            concerns: whether it removes a name.

        Yields:
            It.

        Raises:
            TierError: it must be done again later, and may have been left out now.
        """
        removal = Removal(self._clock())
        with self._lock:
            found = self._concerned(concerns)
            is_idle = bool(found) and all(
                doubt.is_removed and self._is_early(doubt, removal.begun_s) for doubt in found
            )
        if is_idle:
            raise self._error(kind)
        yield removal
        with self._lock:
            found = self._concerned(concerns)
            for doubt in found:
                doubt.is_removed = True
                if doubt.since_s is None:
                    doubt.since_s = self._clock()
            holds = not any(self._is_early(doubt, removal.begun_s) for doubt in found)
        if not holds:
            raise self._error(kind)

    def _concerned(self, concerns: Callable[[Name], bool]) -> list[Doubt]:
        return [doubt for name, doubt in self._doubts.items() if name is _ANY or concerns(name)]

    def _is_early(self, doubt: Doubt, begun_s: float) -> bool:
        return doubt.since_s is None or begun_s < doubt.since_s + self._settle_s

    def _error(self, kind: str) -> TierError:
        return TierError(
            f"{kind}: a put that was given up may still come: removed again "
            f"{self._settle_s:g} s after the store answered"
        )

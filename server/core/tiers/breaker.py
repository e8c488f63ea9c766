"""Whether a tier is asked at all: open after failures in a row or a stall, closed by a check-up.

Purpose: a tier that fails or hangs costs a promotion its time only a few times; then it is left
alone, looked at now and then, and used again once it is well. Must not know: packets, what is
asked of a tier. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from server.core.clock import Timers
from server.core.config import SECOND_NS

MAX_FAILURES = 5
"""Answers in a row without one good part that open a breaker."""

FIRST_PAUSE_NS, LAST_PAUSE_NS = SECOND_NS, 30 * SECOND_NS
"""Until the first check-up of an open breaker; it doubles with each that fails, up to the last."""

CHECK_NS = 10 * SECOND_NS
"""Between two check-ups of a tier that is well: its figures are told with them."""

SAID_NS = 10 * SECOND_NS
"""What a tier's porter complained of so long before the breaker opened is its reason, most likely;
the porter tells at most one complaint a second."""


PORTER_ENDED = "its porter ended, or was killed"


class Breaker:
    """One tier's.

    Args:
        timers: when to look at it.
        check: asks the tier how it is; ``checked`` follows, unless ``lost`` comes first.
        changed: called after it opened or closed.

    Attributes:
        is_closed: whether the tier may be used.
        opened: how often it opened.
        why: it is open, one line; empty while it is closed.
    """

    def __init__(
        self, timers: Timers, check: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._check = check
        self._changed = changed
        self._failures = 0
        self._pause_ns = FIRST_PAUSE_NS
        self._timer = 0
        self._is_checking = False
        self._cause = ""
        self._opened_ns = 0
        self._said = ""
        self._said_ns = 0
        self.is_closed = True
        self.opened = 0

    @property
    def why(self) -> str:
        """Why it is open: what was noticed, and what the porter said of late."""
        if self.is_closed:
            return ""
        is_of_it = bool(self._said) and self._said_ns >= self._opened_ns - SAID_NS
        return f"{self._cause}: {self._said}" if is_of_it else self._cause

    def said(self, text: str) -> None:
        """The tier's porter complained.

        Args:
            text: one line without credentials, which may be the reason of what follows.
        """
        self._said, self._said_ns = text, self._timers.clock.now_ns

    def ready(self) -> None:
        """The tier's porter is up: an open breaker has it looked at at once."""
        self._is_checking = False
        self._look_in(CHECK_NS if self.is_closed else 0)

    def lost(self) -> None:
        """The tier's porter is gone; nothing is asked before the next one is up."""
        self._is_checking = False
        self.open(PORTER_ENDED)
        self._cause = PORTER_ENDED
        self._timers.cancel(self._timer)

    def note(self, is_good: bool) -> None:
        """An answer came, good if not all of it failed."""
        if is_good:
            self._failures, self._pause_ns = 0, FIRST_PAUSE_NS
            return
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self.open("requests failed, one after the other")

    def open(self, cause: str) -> None:
        """Leaves the tier alone for a while; nothing more for one that is open.

        Args:
            cause: what was noticed, a few words.
        """
        if not self.is_closed:
            return
        self._cause, self._opened_ns = cause, self._timers.clock.now_ns
        self.is_closed = False
        self.opened += 1
        self._look_in(self._pause_ns)
        self._changed()

    def checked(self, is_well: bool) -> None:
        """A check-up's answer."""
        self._is_checking = False
        if is_well and not self.is_closed:
            # The next failure opens it again, and then for longer, until something went well.
            self._failures = MAX_FAILURES - 1
            self._pause_ns = min(2 * self._pause_ns, LAST_PAUSE_NS)
            self.is_closed = True
            self._look_in(CHECK_NS)
            self._changed()
        elif is_well:
            self._look_in(CHECK_NS)
        elif self.is_closed:
            self.open("a check-up failed")
        else:
            self._pause_ns = min(2 * self._pause_ns, LAST_PAUSE_NS)
            self._look_in(self._pause_ns)

    def _look_in(self, pause_ns: int) -> None:
        self._timers.cancel(self._timer)
        self._timer = self._timers.at(self._timers.clock.now_ns + pause_ns, self._look)

    def _look(self) -> None:
        # One that does not answer is not asked again: its porter is ended for it sooner or later.
        if not self._is_checking:
            self._is_checking = True
            self._check()

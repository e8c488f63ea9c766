"""How a command of the documents is executed: by the test of its page, elsewhere, or not at all.

Plain data. Knows no page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Run:
    """As it stands, in the page's shell.

    Attributes:
        codes: exit codes that are right.
        more: further words, such as smaller counts.
        ready: what it says when it is ready, if it goes on in the background; a pattern.
        says: a pattern of what it prints.
        is_slow: whether only ``make slow`` runs it, with all of its page.
    """

    codes: tuple[int, ...] = (0,)
    more: str = ""
    ready: str = ""
    says: str = ""
    is_slow: bool = False


@dataclass(frozen=True)
class Elsewhere:
    """By a test, a step of ``.ci/run`` or a step of ``make slow``.

    Attributes:
        where: ``tests/….py``, with ``::`` and a name or without; ``.ci/run NAME``; ``slow NAME``.
    """

    where: str


@dataclass(frozen=True)
class Not:
    """Not at all; what can be looked at without running it is.

    Attributes:
        why: what is lacking here.
        check: name of a check in ``tests/docs/unrun.py``.
    """

    why: str
    check: str


How = Run | Elsewhere | Not

RUN: Final = Run()
LAUNCH: Final = Run(codes=(0,), ready="^kvkeep ready: ")
DOCTOR: Final = Run(codes=(0, 1), says="packages|kvkeep")
"""What doctor thinks of this machine is its own."""

WARM: Final = Run(codes=(0, 3))
"""Nothing was asked for that is lacking."""

"""What a check found. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a rule came out."""

    HELD = "held"
    BROKEN = "BROKEN"
    UNSEEN = "not observed"


@dataclass(frozen=True)
class Verdict:
    """One rule's outcome.

    Attributes:
        outcome: held, broken, or not observed (which is no praise).
        evidence: what was seen, in a line.
    """

    outcome: Outcome
    evidence: str


def held(evidence: str) -> Verdict:
    """The rule was put to the test and held."""
    return Verdict(Outcome.HELD, evidence)


def broken(evidence: str) -> Verdict:
    """The rule was broken."""
    return Verdict(Outcome.BROKEN, evidence)


def unseen(evidence: str) -> Verdict:
    """The situation did not arise."""
    return Verdict(Outcome.UNSEEN, evidence)

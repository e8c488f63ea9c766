"""What ``doctor`` found, one thing after the other, and how it is shown.

Must not know: how anything is found out. Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Level(Enum):
    """How much a finding matters."""

    OK = "ok"
    """It is as it has to be."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """kvkeep works, but slower or with less than it could have."""
    ERROR = "error"
    """Something will not work until it is changed."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: how much it matters.
        about: what was looked at, a few words; the same thing has the same words each time.
        text: what was found.
        advice: what to change, or empty.
    """

    level: Level
    about: str
    text: str
    advice: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """The gravest level among findings; OK when there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def table(findings: Sequence[Finding]) -> str:
    """Findings for people, one a line, each advice below its finding."""
    width = max((len(finding.about) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level.value:<7}  {finding.about:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':<7}  {'':<{width}}  -> {finding.advice}")
    return "\n".join(lines)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Findings for programs.

    Returns:
        ``worst`` and ``findings``, each with ``level``, ``about``, ``text``, ``advice``.
    """
    rows = [{**asdict(finding), "level": finding.level.value} for finding in findings]
    return {"worst": worst(findings).value, "findings": rows}

"""Figures and verdicts of ``tests.restarts --json`` for ``make slow``.

Knows the document's format. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.slow.figure import Figure

KILLS: Final = 50
CHUNKS: Final = 100_000

_TOLD: Final = (
    *("seed", "held_least", "mid_write", "amid_a_copy", "evicting", "reclaiming", "answer_s_p50"),
    *("answer_s_max", "due", "hit_ratio", "fresh_ratio", "verified", "old_read"),
)


def read_restarts(document: Mapping[str, Any], quick: bool) -> dict[str, Figure]:
    """Every claim of a run, and its size.

    Args:
        document: as the run wrote it.
        quick: whether it was a short one.
    """
    kills, least = int(document["kills"]), 4 if quick else KILLS
    figures = {"kills": Figure(kills, f">= {least}", kills >= least)}
    figures |= {name: Figure(document[name]) for name in _TOLD}
    claims = document["claims"]
    figures |= {claim: Figure(held, "held", bool(held)) for claim, held in claims.items()}
    figures["claims"] = Figure(len(claims), ">= 11", len(claims) >= 11)
    troubles = document["troubles"]
    return figures | {f"trouble {at}": Figure(text) for at, text in enumerate(troubles)}


def read_broken(document: Mapping[str, Any]) -> dict[str, Figure]:
    """A server without a guard must have been caught.

    Args:
        document: of a run with ``--break``.
    """
    wrong = int(document["wrong"]) + int(document["old_wrong"])
    return {
        "broken": Figure(document["broken"]),
        "wrong pages": Figure(wrong, "> 0", wrong > 0),
        "kills until then": Figure(document["kills"]),
    }

"""What a check found. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

NO_SERVER: Final = (
    "the server is not this program's to stop and start: give it --server-command, or run "
    "kvkeep's own connector without --server-url"
)
PRIVATE_SERVERS: Final = (
    "with inproc:// each engine has a server of its own, which is not this program's to stop: run "
    "without --server-url to have it observed"
)
NO_LOAD: Final = (
    "nothing was loaded: see that the connector's server runs at --server-url and has room, and "
    "that what is stored is offered again"
)
NO_ASYNC: Final = (
    "nothing was loaded asynchronously: a connector is free not to; answer (n, True) to a query "
    "to have it observed"
)
NO_GROUPS: Final = (
    "the connector does not take several layer groups: it needs register_kv_cache_layout and both "
    "methods ..._by_layer_group"
)
NO_LAYOUTS: Final = (
    "the connector takes no V2 cache: derive it from the host's base classes, or give it "
    "register_kv_cache_layout and both methods ..._by_layer_group"
)
NO_KEEPING: Final = (
    "no request kept its pages: request_finished never answered True, so there was nothing to "
    "give back"
)
NO_ADP: Final = (
    "the connector does not support attention data parallelism, which it is free not to: such "
    "engines refuse it. Both classes have to say supports_attention_dp = True"
)

LASTING: Final = frozenset({NO_SERVER, NO_ASYNC, NO_GROUPS, NO_LAYOUTS, NO_KEEPING, NO_ADP})
"""Reasons that another try does not change."""


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


def shortened(text: str, limit: int) -> str:
    """A text that is cut, if it must be, behind a word.

    Args:
        text: any.
        limit: characters at most, above 1.
    """
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    if not text[limit - 1].isspace():
        words = cut.rpartition(" ")[0]
        cut = words if len(words) > limit // 2 else cut
    return cut.rstrip() + "…"

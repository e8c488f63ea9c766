"""Which values cannot meet in one engine, and the line of the host contract that says so.

Must not know: how combinations are made or run. Plain data and look-ups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from adapter.conformance.coverage.dimensions import LAYOUT, Combination

_V2: Final = tuple(name for name in LAYOUT.names if name.startswith("v2"))
_V1: Final = tuple(name for name in LAYOUT.names if name.startswith("v1"))


@dataclass(frozen=True)
class Rule:
    """Values that cannot meet.

    Attributes:
        when: dimension to values; all must match for the rule to apply.
        why: the reason in a line.
        source: section of the host contract.
    """

    why: str
    source: str
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def forbids(self, values: Mapping[str, str]) -> bool:
        """Whether these values, of some or all dimensions, break the rule.

        Args:
            values: dimension to value; a dimension that is missing matches nothing.
        """
        return all(values.get(name) in those for name, those in self.when.items())


RULES: Final = (
    Rule(
        "only V1 pools are handed to connectors before E3",
        "§1, table",
        {"epoch": ("E1", "E2"), "layout": _V2},
    ),
    Rule(
        "attention data parallelism is rejected before E3",
        "§11, Attention DP",
        {"epoch": ("E1", "E2"), "ranks": ("adp2",)},
    ),
    Rule(
        "attention data parallelism runs on V2 (documents claim V1, the host's tests refuse it)",
        "§5, Attention DP",
        {"layout": _V1, "ranks": ("adp2",)},
    ),
    Rule(
        "V1 runs under GUARANTEED_NO_EVICT and cannot preempt",
        "§6, Preempted",
        {"lifecycle": ("replayed",), "layout": _V1},
    ),
    Rule(
        "only V2's scheduler destroys requests, which begins with E3",
        "§6, Preempted; §1, table",
        {"lifecycle": ("replayed",), "epoch": ("E1", "E2")},
    ),
    Rule(
        "drafts are rejected by early E1; for later 1.1 and 1.2 the contract names no release that "
        "takes them, and the adapter refuses none",
        "§11, Spec decoding",
        {"lifecycle": ("drafts",), "epoch": ("E1",)},
    ),
    Rule(
        "drafts are rejected when V2 is named",
        "§11, Spec decoding",
        {"lifecycle": ("drafts",), "layout": _V2},
    ),
    Rule(
        "drafts need V1, attention data parallelism needs V2",
        "§11, Spec decoding; §5, Attention DP",
        {"lifecycle": ("drafts",), "ranks": ("adp2",)},
    ),
    Rule(
        "CUDA graphs are rejected in early E1, later allowed without layer hooks; the contract "
        "names no release",
        "§11, CUDA graphs",
        {"lifecycle": ("graph",), "epoch": ("E1",)},
    ),
    Rule(
        "pages are freed under a running asynchronous load: the adapter loads synchronously",
        "§6, Cancelled/failed",
        {"mode": ("async",), "epoch": ("E1", "E2")},
    ),
    Rule(
        "pages are freed under a running asynchronous load, but under attention data parallelism",
        "§6, Cancelled/failed; §5, Attention DP",
        {"mode": ("async",), "epoch": ("E3",), "ranks": ("1", "tp2", "tp4")},
    ),
    Rule(
        "asynchronous loads on V1 need E4, for E3 has them under attention data parallelism only",
        "§6, Cancelled/failed; §5, Attention DP",
        {"mode": ("async",), "epoch": ("E3",), "layout": _V1},
    ),
    Rule(
        "drafts on E3 need V1, where asynchronous loads are not safe",
        "§6, Cancelled/failed; §11, Spec decoding",
        {"mode": ("async",), "epoch": ("E3",), "lifecycle": ("drafts",)},
    ),
)


def broken_by(values: Mapping[str, str]) -> Rule | None:
    """The first rule that some values break.

    Args:
        values: dimension to value, of two or more dimensions.

    Returns:
        None for values that may meet.
    """
    return next((rule for rule in RULES if rule.forbids(values)), None)


def is_legal(combination: Combination) -> bool:
    """Whether a host can be put together like this."""
    return broken_by(vars(combination)) is None

"""What a figure of STATS is called in Prometheus, and in which unit.

Names end as Prometheus' rules ask: base units, ``_total`` for counters (which its client adds).
Must not know: values, where they come from. Runs in: the threads that serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from protocol.figures import Kind, Unit, find

PREFIX = "kvkeep_"

#: Families whose name is another one there: several of a thing, the unit last, no unit for a count.
_RENAMED = {
    "error": "errors",
    "complaint": "complaints",
    "arena_bytes_node": "arena_node_bytes",
    "loop_bursts_over_300_us": "loop_long_bursts",
}
_SCALES = {Unit.MICROSECONDS: 1e-6}


@dataclass(frozen=True)
class Placed:
    """Where a figure belongs.

    Attributes:
        family: name of the metric, without a counter's ``_total``.
        is_counter: or a gauge.
        help: one line.
        label: by which figures of the family are told apart; empty for a single one.
        value: of that label.
        scale: from STATS' unit to the metric's.
    """

    family: str
    is_counter: bool
    help: str
    label: str
    value: str
    scale: float


@lru_cache(maxsize=4096)
def place(name: str) -> Placed | None:
    """Where a figure of STATS belongs.

    Args:
        name: as STATS has it.

    Returns:
        None for a name that is not known here: one of a later server.
    """
    found = find(name)
    if found is None:
        return None
    family = _RENAMED.get(found.family, found.family)
    if found.figure.unit is Unit.MICROSECONDS:
        family = family.removesuffix("_us") + "_seconds"
    return Placed(
        PREFIX + family,
        found.figure.kind is Kind.COUNTER,
        found.figure.help,
        found.label,
        found.value,
        _SCALES.get(found.figure.unit, 1),
    )

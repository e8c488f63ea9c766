"""Further ways in which hosts of one combination differ, drawn in place of rows of the table.

Each combination has a few variants; which one a run plays turns with its seed and with the
combination's place among those that have the same ones, so that a run over all combinations plays
each variant, whatever its seed; those of E4's few replayed combinations turn with it. Must not
know: how engines are built. Plain data; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from adapter.conformance.coverage.combine import combinations
from adapter.conformance.coverage.dimensions import Combination


@dataclass(frozen=True)
class Variant:
    """One way to run a host.

    Attributes:
        name: for documents and messages.
        meaning: one line for the document.
        source: where the host contract says so.
        options: of ``HostOptions``.
    """

    name: str
    meaning: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


AS_IT_IS: Final = Variant("as it is", "nothing further", "§5")
ONE_CALL_MORE: Final = Variant(
    "one call more",
    "early `E1`: a request is computed once more after its last token",
    "§5, calls of n tokens",
    {"one_call_more": True},
)
OVERSTATED: Final = Variant(
    "overstated",
    "`E1`, `E2`, `chunked`: chunks are reported before they are cut to whole blocks",
    "§5, step 6",
    {"late_trim": True},
)
INTEGER_SALT: Final = Variant(
    "integer salt", "early `E2`: `cache_salt_id` in place of the text", "§1", {"salt_as_id": True}
)
DRAFTS_OVERLAP: Final = Variant(
    "overlap",
    "`drafts`: how many were accepted is known an iteration later",
    "§3, Positions",
    {"num_drafts": 2, "overlap": True},
)
DRAFTS_IN_TURN: Final = Variant(
    "in turn", "`drafts`: samples are waited for", "§3, Positions", {"overlap": False}
)
MANY_DRAFTS: Final = Variant(
    "many drafts",
    "`drafts`: five of them with overlap, so that pages come and go",
    "§3, Positions; §11",
    {"num_drafts": 5, "overlap": True},
)
AGGRESSIVE: Final = Variant(
    "aggressive",
    "`E4`, V2: offers are asked for while the batch is made up, settled later or never",
    "§5, Aggressive mode",
    {"aggressive": True},
)
DIRECT: Final = Variant(
    "direct preemption",
    "`E4`, `replayed`: `request_finished` in place of `request_reset`",
    "§6, Preempted",
    {"direct_preemption": True},
)
BOTH: Final = Variant(
    "aggressive, direct preemption",
    "`E4`, `replayed`: both",
    "§5; §6",
    {"aggressive": True, "direct_preemption": True},
)
NO_OVERLAP: Final = Variant(
    "no overlap",
    "each forward's samples are waited for before the next batch",
    "§5, step 13",
    {"overlap": False},
)

VARIANTS: Final = (
    *(AS_IT_IS, NO_OVERLAP, ONE_CALL_MORE, OVERSTATED, INTEGER_SALT),
    *(DRAFTS_OVERLAP, MANY_DRAFTS, DRAFTS_IN_TURN, AGGRESSIVE, DIRECT, BOTH),
)


def variants_of(combination: Combination) -> tuple[Variant, ...]:
    """What a combination may be run as; the first one is the usual one.

    Args:
        combination: legal.
    """
    epoch, life = combination.epoch, combination.lifecycle
    if life == "drafts":
        return DRAFTS_OVERLAP, MANY_DRAFTS, DRAFTS_IN_TURN
    if epoch in ("E1", "E2") and life == "chunked":
        return AS_IT_IS, OVERSTATED
    if epoch == "E1":
        return AS_IT_IS, ONE_CALL_MORE
    if epoch == "E2":
        return AS_IT_IS, INTEGER_SALT
    if epoch == "E4" and life == "replayed":
        return AS_IT_IS, AGGRESSIVE, DIRECT, BOTH
    if epoch == "E4" and combination.layout.startswith("v2"):
        return AS_IT_IS, AGGRESSIVE
    return (AS_IT_IS,) if life == "early_stop" else (AS_IT_IS, NO_OVERLAP)


def variant_of(combination: Combination, seed: int | None) -> Variant:
    """What a combination is run as.

    Args:
        combination: legal.
        seed: of the run; None for the usual variant.
    """
    those = variants_of(combination)
    if seed is None:
        return those[0]
    alike = _alike(those)
    place = alike.index(combination) if combination in alike else 0
    return those[(place + seed) % len(those)]


@cache
def _alike(those: tuple[Variant, ...]) -> tuple[Combination, ...]:
    return tuple(one for one in combinations() if variants_of(one) == those)

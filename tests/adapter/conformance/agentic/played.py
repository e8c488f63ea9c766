"""Outcomes made by arithmetic, for tests of what is told of them."""

from __future__ import annotations

from adapter.conformance.agentic.figures import Seen
from adapter.conformance.agentic.outcome import Outcome
from adapter.conformance.agentic.rig import Played, Scale
from adapter.conformance.agentic.workload import Workload


def perfect(workload: Workload, *, saves_answers: bool = False, warm: bool = False) -> Played:
    """A pass in which every request hit what it should, at 10 GB/s."""
    hits = workload.expected_hits(saves_answers=saves_answers)
    size = workload.block_tokens
    seen = []
    for turn, found in zip(workload.order(), hits, strict=True):
        hit = (turn.num_tokens - 1) // size if warm else found
        seen.append(
            Seen(turn.turn, turn.num_tokens, turn.num_tokens // size, hit, load_s=0.001 * hit)
        )
    return Played(seen, sum(one.hit_blocks for one in seen))


def outcome(scale: Scale | None = None) -> Outcome:
    """All passes as they should be."""
    scale = scale or Scale(Workload(32))
    workload = scale.workload
    return Outcome(
        scale,
        perfect(workload),
        perfect(workload, warm=True),
        perfect(workload, saves_answers=True),
        seconds=12.0,
    )

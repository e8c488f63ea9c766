"""From what was seen of each request to the figures that are told.

Time to first token is *modelled*: a prompt token that must be computed takes 1/3000 s, one that is
found takes nothing, and loading takes what it was measured to take, or nothing. Block counts, bytes
and load times are measured.

Must not know: engines, servers. Plain arithmetic; any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOKENS_PER_S: Final = 3000.0


@dataclass(frozen=True)
class Seen:
    """One request, as it went.

    Attributes:
        turn: number of the turn.
        num_tokens: of the prompt.
        num_blocks: whole blocks of it.
        hit_blocks: loaded from the server.
        device_blocks: matched by the engine itself.
        load_s: in the hook that loads, seconds.
        query_s: in the hook that asks the server, seconds.
    """

    turn: int
    num_tokens: int
    num_blocks: int
    hit_blocks: int
    device_blocks: int = 0
    load_s: float = 0.0
    query_s: float = 0.0


@dataclass(frozen=True)
class Summary:
    """All requests of one run.

    Attributes:
        blocks: whole blocks of all prompts.
        hits: of those, loaded from the server.
        per_turn: ratio of hits to blocks in each turn.
        cumulative: the same over all requests up to each one.
        ttft_speedup_modelled: cold over warm time, loading taken as free.
        ttft_speedup_measured_load: the same with query and load as measured.
        load_s: seconds in loads, all together.
        query_s: seconds in queries, those that found nothing too, all together.
    """

    blocks: int
    hits: int
    per_turn: list[float]
    cumulative: list[float]
    ttft_speedup_modelled: float
    ttft_speedup_measured_load: float
    load_s: float
    query_s: float

    @property
    def ratio(self) -> float:
        """Hits over blocks."""
        return self.hits / self.blocks


def summarize(seen: Sequence[Seen], block_tokens: int) -> Summary:
    """Adds up.

    Args:
        seen: all requests in order, at least one.
        block_tokens: tokens of a block.

    Returns:
        The figures.
    """
    cold_s = sum(one.num_tokens for one in seen) / TOKENS_PER_S
    computed = sum(one.num_tokens - one.hit_blocks * block_tokens for one in seen)
    warm_s = computed / TOKENS_PER_S
    load_s = sum(one.load_s for one in seen)
    query_s = sum(one.query_s for one in seen)
    by_turn: dict[int, list[Seen]] = {}
    for one in seen:
        by_turn.setdefault(one.turn, []).append(one)
    hits = list(itertools.accumulate(one.hit_blocks for one in seen))
    blocks = list(itertools.accumulate(one.num_blocks for one in seen))
    return Summary(
        blocks=blocks[-1],
        hits=hits[-1],
        per_turn=[_ratio(by_turn[turn]) for turn in sorted(by_turn)],
        cumulative=[found / all_ for found, all_ in zip(hits, blocks, strict=True)],
        ttft_speedup_modelled=cold_s / warm_s,
        ttft_speedup_measured_load=cold_s / (warm_s + load_s + query_s),
        load_s=load_s,
        query_s=query_s,
    )


def _ratio(seen: Sequence[Seen]) -> float:
    return sum(one.hit_blocks for one in seen) / sum(one.num_blocks for one in seen)

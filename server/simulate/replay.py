"""A trace over a set of nodes.

Purpose: make nodes and tiers of the settings' sizes, bring each prompt to a node in order of
arrival, count. Must not know: files, how figures are shown. Runs in: the process of the command
line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from protocol.errors import ConfigError, ErrorCode
from server.simulate.figures import Figures
from server.simulate.lower import DISK_AGES, Contents, Writer
from server.simulate.node import Node, Tier
from server.simulate.settings import Lower, Settings, Size
from server.simulate.traces import Prompt, Trace
from server.sizes import format_size

_EVERY_PROMPTS = 256
_APART_S = 1e6
"""Between two requests that come one by one: whatever moves has come to rest."""


def run(
    trace: Trace, settings: Settings, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Replays a trace.

    Args:
        trace: what arrives.
        settings: what it meets.
        progress: told now and then how many requests were replayed.

    Returns:
        The figures, as plain values; see docs/scale.md.
    """
    fleet = _Fleet(trace, settings)
    for number, (at, copy, prompt) in enumerate(_arrivals(trace, settings.copies)):
        fleet.serve(number, at, copy, prompt)
        if number % _EVERY_PROMPTS == 0:
            progress(number)
    return fleet.document()


def _arrivals(trace: Trace, copies: int) -> Iterator[tuple[float, int, Prompt]]:
    """All copies by time; they begin evenly spread over the trace's length."""

    def one(copy: int) -> Iterator[tuple[float, int, Prompt]]:
        begin = trace.seconds * copy / copies
        return ((prompt.at_s + begin, copy, prompt) for prompt in trace.prompts)

    return heapq.merge(*map(one, range(copies)), key=lambda arrival: arrival[:2])


class _Fleet:
    """Nodes, their tiers, and the counts."""

    def __init__(self, trace: Trace, settings: Settings) -> None:
        self._trace, self._settings = trace, settings
        self._chunk_tokens = trace.block_tokens * settings.chunk_blocks
        self._chunk_bytes = self._chunk_tokens * settings.bytes_per_token
        self._working_set = len(
            {chunk for prompt in trace.prompts for chunk in self._chunks(prompt, 0)}
        )
        self._figures = Figures(
            ["l1", *(lower.name for lower in settings.lower)],
            self._chunk_tokens,
            self._chunk_bytes,
            settings.prefill_tokens_s,
            settings.l1_gbps * 1e9,
        )
        shared = {lower.name: self._contents(lower) for lower in settings.lower if lower.is_shared}
        self._nodes = [self._node(shared) for _ in range(settings.nodes)]
        self._writing_to_others: dict[Writer, None] = {}
        self._first_at = self._last_at = trace.prompts[0].at_s

    def _contents(self, lower: Lower) -> Contents:
        there = self._working_set * self._settings.copies
        ages = 0 if lower.is_shared else DISK_AGES
        return Contents(self._room(lower.size), ages, there)

    def _room(self, size: Size) -> int:
        """Chunks that fit; no more than there are, so that arrays for them stay small."""
        there = self._working_set * self._settings.copies
        chunks = size.chunks(self._chunk_bytes, self._working_set)
        if size.num_bytes and not chunks:
            least = format_size(self._chunk_bytes)
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"{format_size(size.num_bytes)} holds no chunk: one has {least} here",
            )
        return min(chunks, there)

    def _node(self, shared: dict[str, Contents]) -> Node:
        settings, tiers = self._settings, []
        for lower in settings.lower:
            contents = shared[lower.name] if lower.is_shared else self._contents(lower)
            tiers.append(Tier(lower, contents, self._chunk_bytes, self._counter(lower)))
        return Node(self._room(settings.l1), tiers, settings.deadline_s)

    def _counter(self, lower: Lower) -> Callable[[float], None]:
        def count(at: float) -> None:
            self._figures.count_write(
                lower.name, self._last_at if self._settings.one_by_one else at
            )

        return count

    def _chunks(self, prompt: Prompt, copy: int) -> list[int]:
        """Chunks of a prompt: each has the number of its last block."""
        blocks, every = prompt.blocks, self._settings.chunk_blocks
        if not self._settings.count_partial:
            blocks = blocks[: prompt.tokens // self._trace.block_tokens]
        begin = copy * self._trace.num_blocks
        return [begin + block for block in blocks[every - 1 :: every]]

    def serve(self, number: int, at: float, copy: int, prompt: Prompt) -> None:
        """Brings one prompt to its node."""
        settings, self._last_at = self._settings, at
        chunks = self._chunks(prompt, copy)
        usable = len(chunks)
        if not settings.count_partial:
            usable = min(usable, (prompt.tokens - 1) // self._chunk_tokens)
        which = number
        if settings.route == "session":
            which = xxhash.xxh3_64_intdigest(b"%d/%d" % (copy, prompt.session))
        now = number * _APART_S if settings.one_by_one else at
        # What others wrote counts only where the tier is shared.
        for writer in list(self._writing_to_others):
            writer.settle(now)
            if writer.is_idle:
                del self._writing_to_others[writer]
        node = self._nodes[which % settings.nodes]
        for tier in node.tiers:
            tier.writer.settle(now)
        outcome = node.serve(now, chunks, usable)
        for tier in node.tiers:
            if tier.spec.is_shared and not tier.writer.is_idle:
                self._writing_to_others[tier.writer] = None
        self._figures.count(at, prompt.tokens, outcome)

    def document(self) -> dict[str, Any]:
        """Everything, after writes that still wait."""
        figures = self._figures
        for node in self._nodes:
            for tier in node.tiers:
                tier.writer.settle(float("inf"))
                figures.dropped_chunks[tier.spec.name] += tier.writer.dropped
        trace, settings = self._trace, self._settings
        bytes_of = self._chunk_bytes
        return {
            "schema": SCHEMA,
            "trace": {
                "files": trace.num_files,
                "sessions": trace.num_sessions,
                "requests": len(trace.prompts),
                "block_tokens": trace.block_tokens,
                "seconds": round(trace.seconds, 3),
                "working_set_bytes": self._working_set * bytes_of,
            },
            "settings": {
                "nodes": settings.nodes,
                "route": settings.route,
                "copies": settings.copies,
                "chunk_tokens": self._chunk_tokens,
                "chunk_bytes": bytes_of,
                "deadline_s": settings.deadline_s,
                "prefill_tokens_s": settings.prefill_tokens_s,
                "l1_gbps": settings.l1_gbps,
                "one_by_one": settings.one_by_one,
                "count_partial": settings.count_partial,
                "l1_chunks": self._room(settings.l1),
                "tiers": [
                    {
                        "name": lower.name,
                        "shared": lower.is_shared,
                        "chunks": self._room(lower.size),
                        "policy": lower.policy.value.replace("N", str(lower.uses)),
                        "read_gbps": lower.read_gbps,
                        "write_gbps": lower.write_gbps,
                    }
                    for lower in settings.lower
                ],
            },
            **figures.document(self._last_at - self._first_at, settings.nodes),
        }


SCHEMA = 1
"""Version of the document; raised when a field changes its meaning or goes."""

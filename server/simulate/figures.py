"""Counts of a run, and what follows from them.

Purpose: hit ratios by tier, misses by reason, bytes and rates, time to first token. Must not know:
caches, traces. Runs in: the process of the command line.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from server.simulate.node import Miss, Outcome

WINDOW_S = 60
"""Peaks are over windows of this length."""


@dataclass
class Figures:
    """What is counted while a trace is replayed.

    Args:
        sources: names: ``l1``, then each tier.
        chunk_tokens: tokens a chunk.
        chunk_bytes: KV of a chunk.
        prefill_tokens_s: what an engine computes.
        l1_bytes_s: what it loads from memory.
    """

    sources: list[str]
    chunk_tokens: int
    chunk_bytes: int
    prefill_tokens_s: float
    l1_bytes_s: float
    requests: int = 0
    chunks: int = 0
    tokens: int = 0
    computed_tokens: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    read_chunks: Counter[str] = field(default_factory=Counter)
    written_chunks: Counter[str] = field(default_factory=Counter)
    dropped_chunks: Counter[str] = field(default_factory=Counter)
    cold_s: float = 0.0
    waited_s: float = 0.0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    _windows: dict[str, Counter[int]] = field(default_factory=dict)

    def count(self, at: float, tokens: int, outcome: Outcome) -> None:
        """Takes one request.

        Args:
            at: its arrival.
            tokens: of its prompt.
            outcome: what became of it.
        """
        found = sum(outcome.hits)
        computed = max(0, tokens - found * self.chunk_tokens)
        self.requests += 1
        self.chunks += found + outcome.missing
        self.tokens += tokens
        self.computed_tokens += computed
        for source, hits in zip(self.sources, outcome.hits, strict=True):
            self.hits[source] += hits
        if outcome.why is not None:
            self.misses[outcome.why.value] += outcome.missing
        for source, read in zip(self.sources[1:], outcome.read_chunks, strict=True):
            self.read_chunks[source] += read
            if read:
                self._note(f"read {source}", at, read)
        self._note("requests", at, 1)
        self.waited_s += outcome.waited_s
        self.cold_s += tokens / self.prefill_tokens_s
        loading_s = found * self.chunk_bytes / self.l1_bytes_s
        self.ttft_s.append(outcome.waited_s + loading_s + computed / self.prefill_tokens_s)

    def count_write(self, source: str, at: float) -> None:
        """Takes one chunk that was written to a tier."""
        self.written_chunks[source] += 1
        self._note(f"written {source}", at, 1)

    def _note(self, name: str, at: float, count: int) -> None:
        self._windows.setdefault(name, Counter())[int(at // WINDOW_S)] += count

    # --- what follows ---------------------------------------------------------------------

    def document(self, seconds: float, nodes: int) -> dict[str, Any]:
        """Everything, as plain values.

        Args:
            seconds: from the first arrival to the last.
            nodes: how many nodes shared the work.
        """
        seconds = max(seconds, 1.0)
        return {
            "requests": self.requests,
            "chunks": self.chunks,
            "tokens": self.tokens,
            "computed_tokens": self.computed_tokens,
            "token_speedup": _ratio(self.tokens, self.computed_tokens),
            "hit_ratio": _ratio(sum(self.hits.values()), self.chunks),
            "hit_ratio_by_tier": {
                source: _ratio(self.hits[source], self.chunks) for source in self.sources
            },
            "hit_chunks": {source: self.hits[source] for source in self.sources},
            "miss_chunks": {reason.value: self.misses[reason.value] for reason in Miss},
            "loaded_bytes": sum(self.hits.values()) * self.chunk_bytes,
            "tiers": {source: self._tier(source, seconds, nodes) for source in self.sources[1:]},
            "ttft": self._ttft(),
            "rates": {
                "seconds": round(seconds, 3),
                "requests_s": round(self.requests / seconds, 3),
                "requests_s_peak": round(self._peak("requests"), 3),
                "prefill_busy": round(
                    self.computed_tokens / self.prefill_tokens_s / seconds / nodes, 4
                ),
                "waiting_busy": round(self.waited_s / seconds / nodes, 4),
            },
        }

    def _tier(self, source: str, seconds: float, nodes: int) -> dict[str, Any]:
        read, written = self.read_chunks[source], self.written_chunks[source]
        read_peak, write_peak = self._peak(f"read {source}"), self._peak(f"written {source}")

        def gbps(chunks: float) -> float:
            return round(chunks * self.chunk_bytes / 1e9, 4)

        return {
            "promoted_bytes": read * self.chunk_bytes,
            "written_bytes": written * self.chunk_bytes,
            "dropped_bytes": self.dropped_chunks[source] * self.chunk_bytes,
            "read_gbps": gbps(read / seconds),
            "read_gbps_peak": gbps(read_peak),
            "read_gbps_of_a_node": gbps(read / seconds / nodes),
            "read_gbps_of_a_node_peak": gbps(read_peak / nodes),
            "write_gbps": gbps(written / seconds),
            "write_gbps_peak": gbps(write_peak),
            "write_gbps_of_a_node": gbps(written / seconds / nodes),
            "write_gbps_of_a_node_peak": gbps(write_peak / nodes),
        }

    def _peak(self, name: str) -> float:
        """The busiest window's count, a second."""
        return max(self._windows.get(name, Counter({0: 0})).values()) / WINDOW_S

    def _ttft(self) -> dict[str, float]:
        ordered, total = sorted(self.ttft_s), sum(self.ttft_s)
        return {
            "mean_s": round(total / len(ordered), 4),
            "waited_mean_s": round(self.waited_s / len(ordered), 4),
            "p50_s": round(_quantile(ordered, 0.5), 4),
            "p99_s": round(_quantile(ordered, 0.99), 4),
            "cold_mean_s": round(self.cold_s / len(ordered), 4),
            "speedup": _ratio(self.cold_s, total),
        }


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

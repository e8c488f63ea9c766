"""All runs of the benchmark, the document made of them, and whether all is as it should be.

Must not know: engines, servers, terminals. Plain data; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapter.conformance.agentic.figures import Summary, summarize
from adapter.conformance.agentic.rig import Played, Scale
from adapter.conformance.agentic.workload import blocks


@dataclass(frozen=True)
class Outcome:
    """What three passes showed.

    Attributes:
        scale: sizes of the first two.
        first: an engine on an empty cache.
        again: another engine on the cache that the first one filled.
        answers: an engine whose answers are saved too, on an empty cache of small pages.
        seconds: the whole run.
    """

    scale: Scale
    first: Played
    again: Played
    answers: Played
    seconds: float

    @property
    def summary(self) -> Summary:
        """Figures of the first pass."""
        return self._summarize(self.first)

    @property
    def answers_summary(self) -> Summary:
        """Figures of the pass that saves answers."""
        return self._summarize(self.answers)

    @property
    def again_summary(self) -> Summary:
        """Figures of the pass on the warm cache."""
        return self._summarize(self.again)

    def _summarize(self, played: Played) -> Summary:
        return summarize(played.seen, self.scale.workload.block_tokens)

    @property
    def restart_ratio(self) -> float:
        """Hits of the second engine, over all that a prompt may take from a cache."""
        size = self.scale.workload.block_tokens
        usable = sum((turn.num_tokens - 1) // size for turn in self.scale.workload.order())
        return self.again_summary.hits / usable

    @property
    def is_bit_exact(self) -> bool:
        """Whether every loaded block was compared, in all passes."""
        return all(one.is_bit_exact for one in (self.first, self.again, self.answers))

    @property
    def load_bytes(self) -> int:
        """Loaded in the first pass."""
        return self.summary.hits * self.scale.page_bytes

    @property
    def load_gb_per_s(self) -> float:
        """Speed of these loads in 10^9 bytes a second; 0 without any."""
        return self.load_bytes / self.summary.load_s / 1e9 if self.summary.load_s else 0.0

    def wrong(self) -> list[str]:
        """What is not as arithmetic says, one line each; empty when all is."""
        workload = self.scale.workload
        found = []
        for name, played, saves in (
            ("prompts saved", self.first, False),
            ("answers saved", self.answers, True),
        ):
            expected = workload.expected_hits(saves_answers=saves)
            for number, (one, hits) in enumerate(zip(played.seen, expected, strict=True), 1):
                if one.hit_blocks != hits:
                    found.append(f"{name}: request {number} hit {one.hit_blocks}, not {hits}")
                if one.device_blocks:
                    found.append(f"{name}: request {number} reused {one.device_blocks} of its own")
        if self.restart_ratio != 1.0:
            found.append(f"a second engine found {self.restart_ratio:.4f} of what it could")
        if not self.is_bit_exact:
            found.append("not every loaded block was compared")
        return found

    def document(self) -> dict[str, Any]:
        """Everything as plain data, JSON-ready."""
        workload, summary, answers = self.scale.workload, self.summary, self.answers_summary
        expected = workload.expected_hits(saves_answers=False)
        return {
            "schema": 1,
            "block_tokens": workload.block_tokens,
            "kv_bytes_per_token": self.scale.token_bytes,
            "agents": workload.agents,
            "turns": workload.turns,
            "blocks": summary.blocks,
            "hits": summary.hits,
            "expected_blocks": sum(blocks(workload.order(), workload.block_tokens)),
            "expected_hits": sum(expected),
            "ratio": round(summary.ratio, 4),
            "per_turn": [round(ratio, 3) for ratio in summary.per_turn],
            "cumulative": [round(ratio, 4) for ratio in summary.cumulative],
            "ttft_speedup_modelled": round(summary.ttft_speedup_modelled, 3),
            "ttft_speedup_measured_load": round(summary.ttft_speedup_measured_load, 3),
            "load_bytes": self.load_bytes,
            "load_s": round(summary.load_s, 4),
            "query_s": round(summary.query_s, 4),
            "load_gb_per_s": round(self.load_gb_per_s, 2),
            "restart_ratio": round(self.restart_ratio, 4),
            "restart_speedup_modelled": round(self.again_summary.ttft_speedup_modelled, 1),
            "bit_exact": self.is_bit_exact,
            "answers_saved": {
                "ratio": round(answers.ratio, 4),
                "speedup": round(answers.ttft_speedup_modelled, 3),
                "cumulative": [round(ratio, 4) for ratio in answers.cumulative],
            },
            "wrong": self.wrong(),
            "seconds": round(self.seconds, 1),
        }

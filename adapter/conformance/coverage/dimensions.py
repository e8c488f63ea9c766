"""The dimensions in which hosts and engines differ, and their values.

Must not know: how a combination is run. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Value:
    """One value of a dimension.

    Attributes:
        name: as in test ids.
        meaning: one line for the document.
    """

    name: str
    meaning: str


@dataclass(frozen=True)
class Dimension:
    """One way in which hosts or engines differ.

    Attributes:
        name: field of a combination.
        values: in the document's order.
    """

    name: str
    values: tuple[Value, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values."""
        return tuple(value.name for value in self.values)


EPOCH: Final = Dimension(
    "epoch",
    (
        Value("E1", "releases 1.1 to 1.2.x: V1, five-field reports, callbacks interleaved"),
        Value("E2", "1.3.0rc*, probably 1.4.0rc0 and rc1: V1, salts, `wait_for_initialization`"),
        Value(
            "E3",
            "about 1.4.0rc4 (merged in September 2026): V2 layouts, layer groups, attention data "
            "parallelism",
        ),
        Value(
            "E4",
            "very recent or on a branch only, may change: `cancel_load`, `request_reset`, "
            "`shutdown`",
        ),
    ),
)
LIFECYCLE: Final = Dimension(
    "lifecycle",
    (
        Value("plain", "query, pages, report, steps, `request_finished`"),
        Value("chunked", "a prompt computed in several forwards"),
        Value("device_prefix", "a part of the prompt is matched in the host's own pool"),
        Value("early_stop", "a stop token under overlap: one forward too many, a second scan"),
        Value("cancelled", "ended by the client, with or without a callback"),
        Value("replayed", "destroyed for want of pages and begun again under the same id"),
        Value("context_only", "the first half of a disaggregated request: one forward, then over"),
        Value("skipped_forward", "loads were started, the forward does not run in that iteration"),
        Value(
            "drafts",
            "drafts without a model of their own (MTP, Eagle as one model, NGram): 1 + drafts are "
            "reported, some are rejected; the drafts are the host's own, no method's",
        ),
        Value("idle", "the executor goes idle right behind a save"),
        Value("graph", "one token is left to compute: a replayed graph without layer hooks"),
    ),
)
LAYOUT: Final = Dimension(
    "layout",
    (
        Value("v1", "one tensor, K and V, 4-byte elements, blocks of 16 tokens"),
        Value("v1_mla", "one latent vector in place of K and V"),
        Value("v1_fp8", "FP8: 1-byte elements"),
        Value("v1_bs32", "blocks of 32 tokens"),
        Value("v1_bs64", "blocks of 64 tokens where the arguments say 32"),
        Value("v1_bs128", "blocks of 128 tokens"),
        Value("v1_private", "memory the server cannot map (managed): through the staging ring"),
        Value("v2_one", "one layer group in one region"),
        Value("v2_regions", "one group in several regions, pages smaller than their stride"),
        Value("v2_groups", "two groups, one with a window longer than any request"),
        Value("v2_window", "a full-attention group and one with a sliding window"),
        Value("v2_private", "V2's virtual memory, which cannot be exported"),
        Value("v2_mla", "V2, one latent vector in place of K and V, in two regions"),
        Value("v2_fp8", "V2, FP8: 1-byte elements, blocks of 64 tokens where the arguments say 32"),
    ),
)
MODE: Final = Dimension(
    "mode",
    (
        Value("auto", "what the epoch makes safe"),
        Value("sync", "complete before the forward"),
        Value("async", "the request waits outside the batch"),
        Value("layerwise", "each layer waits for its own bytes"),
    ),
)
RANKS: Final = Dimension(
    "ranks",
    (
        Value("1", "one process"),
        Value("tp2", "tensor parallel, 2 processes"),
        Value("tp4", "tensor parallel, 4 processes"),
        Value("adp2", "attention data parallel, 2 processes"),
    ),
)

DIMENSIONS: Final = (EPOCH, LIFECYCLE, LAYOUT, MODE, RANKS)

DEVICE: Final = Dimension(
    "device",
    (
        Value("host", "the pool is host memory, streams are threads"),
        Value(
            "simulated",
            "the pool is memory of a simulated CUDA device: its streams make copies late and in "
            "random order, its events are exact, its memory is shared by handles",
        ),
    ),
)
"""Not one of ``DIMENSIONS``: every combination is played on both, not pairs of values."""


@dataclass(frozen=True)
class Combination:
    """One value of each dimension."""

    epoch: str
    lifecycle: str
    layout: str
    mode: str
    ranks: str

    @property
    def test_id(self) -> str:
        """What stands in brackets in the name of its test."""
        return f"{self.epoch}-{self.lifecycle}-{self.layout}-{self.mode}-{self.ranks}"

    @property
    def test_file(self) -> str:
        """Where its test is."""
        suffix = "" if self.ranks == "1" else "_ranked"
        return f"tests/e2e/test_combinations{suffix}.py"

    @property
    def device_test_file(self) -> str:
        """Where its test on the simulated device is."""
        return "tests/e2e/test_combinations_simulated.py"

    def value(self, dimension: str) -> str:
        """The value of a dimension, by name."""
        found: str = getattr(self, dimension)
        return found

"""Engines that are not cached although their host would run a connector, and how that is said.

Must not know: the adapter's code; tests compare each line with what an engine logs. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Case:
    """One kind of engine.

    Attributes:
        name: of the case, in test ids.
        what: for the document.
        line: how the one line in the log begins, behind "this engine runs uncached: ".
        source: section of the host contract.
    """

    name: str
    what: str
    line: str
    source: str

    @property
    def test(self) -> str:
        """The test that shows it."""
        return f"tests/e2e/test_refused.py::test_refused[{self.name}]"


REFUSED: Final = (
    Case(
        "reuse_off",
        "block reuse switched off",
        "kv_cache_config.enable_block_reuse is off",
        "§9 rule 15",
    ),
    Case(
        "nvfp4",
        "an NVFP4 KV cache on V1",
        "an NVFP4 KV cache keeps its scales in a second pool",
        "§7, V1; §11",
    ),
    Case(
        "several_pools",
        "a V1 pool that holds only some of the model's layers",
        "the pool shown holds",
        "§7, V1; §11",
    ),
    Case("host_tier", "a tier below the GPU", "kv_cache_config.host_cache_size is set", "§11"),
    Case(
        "short_window",
        "a sliding window on V1",
        "kv_cache_config.max_attention_window",
        "§9 rule 16; §11",
    ),
    Case("draft_model", "a draft model", "a draft model", "§11, Spec decoding"),
    Case("pipeline", "pipeline parallelism", "pipeline_parallel_size above 1", "§11"),
    Case(
        "other_nodes",
        "ranks on several nodes",
        "tensor_parallel_size",
        "§8: a hit needs every shard",
    ),
)

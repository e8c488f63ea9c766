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
        "packed_values",
        "a pool of bytes that hold several values each",
        "a pool of int8 holds",
        "§7, V1; §11",
    ),
    Case(
        "several_pools",
        "a V1 pool that holds only some of the model's layers",
        "the pool shown holds 1 of the model's 2 layers",
        "§7, V1; §11",
    ),
    Case(
        "odd_pages",
        "a V1 page row that is no whole number of tokens",
        "a page row of",
        "§2; §7, V1",
    ),
    Case(
        "out_of_reach",
        "a pool in GPU memory where CUDA cannot be used, or whose address no GPU knows",
        "this process cannot reach cuda memory",
        "§7",
    ),
    Case(
        "shared_layers",
        "a layout with layers in several groups (virtual attention layers)",
        "layers [0] are in several groups",
        "§7, V2",
    ),
    Case(
        "unlike_blocks",
        "a layout whose groups differ in their block size",
        "layer group 1 has blocks of 8 tokens",
        "§7, V2",
    ),
    Case(
        "overlapping_parts",
        "a layout whose parts overlap",
        "a region of layer group 0 has parts of",
        "§7, V2",
    ),
    Case(
        "overlapping_regions",
        "a layout whose regions overlap, but for groups that take their pages from one pool",
        "regions of layer group 0 overlap",
        "§7, V2",
    ),
    Case(
        "odd_layout",
        "a layout that is not understood",
        "the layout is not understood",
        "§7, V2",
    ),
    Case(
        "nvfp4_unseen",
        "an NVFP4 KV cache on V2 whose layout does not name buffers for all scales of each layer",
        "an NVFP4 KV cache of which the layout does not show all scales",
        "§7, V2",
    ),
    Case("host_tier", "a tier in host memory", "kv_cache_config.host_cache_size is set", "§11"),
    Case("disk_tier", "a tier on disk", "kv_cache_config.disk_cache_size is set", "§11"),
    Case(
        "short_window",
        "a sliding window on V1",
        "kv_cache_config.max_attention_window",
        "§9 rule 16; §11",
    ),
    Case(
        "draft_model",
        "a draft model",
        "speculative_config DraftTarget runs a draft model",
        "§11, Spec decoding",
    ),
    Case("pipeline", "pipeline parallelism", "pipeline_parallel_size above 1", "§11"),
    Case("context_parallel", "context parallelism", "context_parallel_size above 1", "§11"),
    Case("beams", "beam search", "max_beam_width above 1", "§11"),
    Case(
        "other_nodes",
        "ranks on several nodes",
        "tensor_parallel_size 8 exceeds gpus_per_node 4",
        "§8: a hit needs every shard",
    ),
    Case(
        "odd_rank",
        "more processes than the tensor-parallel size",
        "rank 2 of 1 attention ranks",
        "§4; §8",
    ),
    Case(
        "recurrent_layers",
        "a model with recurrent (Mamba or linear-attention) layers",
        "the model has recurrent",
        "§7; §11",
    ),
    Case(
        "unknown_weights",
        "weights that no file tells apart from others",
        "no weight files of model",
        "§8: equal keys mean equal bytes",
    ),
)

"""Stand-ins for what a host passes to a connector: arguments, requests, reports, marks.

Plain data with the attributes of host contract §2 and §3; no torch, no host.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adapter.geometry import Geometry, GroupGeometry
from adapter.promises import Offer
from adapter.requeststate import RequestFacts, RequestState
from protocol.ids import Epoch, LeaseId, ShardIndex
from protocol.keys import MediaItem, ReuseScope
from protocol.layout import SLOT_DTYPE

EPOCH = Epoch(b"e" * 16)


@dataclass
class CacheConfig:
    tokens_per_block: int = 4
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = False
    dtype: str = "auto"
    host_cache_size: int | None = None
    disk_cache_size: int | None = None
    max_attention_window: list[int] | None = None


@dataclass
class ConnectorSettings:
    server_url: str | None = None


@dataclass(eq=False)
class Args:
    model: str | Path = "model"
    kv_cache_config: CacheConfig = field(default_factory=CacheConfig)
    kv_connector_config: ConnectorSettings | None = None
    attn_backend: str = "TRTLLM"
    dtype: str = "float32"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    enable_attention_dp: bool = False
    max_seq_len: int | None = None
    revision: str | None = None
    quant_config: object | None = None
    speculative_config: object | None = None


@dataclass
class FakeRequest:
    request_id: int
    tokens: list[int]
    cache_salt: Any = None
    lora_task_id: int | None = None
    multimodal_hashes: Any = None
    multimodal_positions: Any = None
    multimodal_lengths: Any = None
    is_generation_only_request: Any = False

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)


@dataclass
class Report:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    new_block_ids_by_layer_group: list[list[int]] = field(default_factory=list)


@dataclass
class Output:
    new_requests: list[Report] = field(default_factory=list)
    cached_requests: list[Report] = field(default_factory=list)


@dataclass
class FakeMark:
    is_done: bool = True
    error: Exception | None = None

    def query(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_done


def geometry(
    tokens_per_block: int = 4,
    chunk_blocks: int = 1,
    num_pages: int = 64,
    windows: tuple[int, ...] = (0,),
    rank: int = 0,
    num_ranks: int = 1,
    page_bytes: int = 64,
) -> Geometry:
    """One rank's pages: a layer group for each window (0: full attention), none replicated."""
    return Geometry(
        tokens_per_block,
        chunk_blocks,
        groups=tuple(GroupGeometry(num_pages, page_bytes, window) for window in windows),
        shards=tuple(ShardIndex(group * num_ranks + rank) for group in range(len(windows))),
        rank=rank,
        num_ranks=num_ranks,
    )


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(32_000) for _ in range(count)]


def facts(
    request_id: int,
    token_ids: list[int],
    scope: ReuseScope | None = ReuseScope(),  # noqa: B008 - frozen
    media: tuple[MediaItem, ...] = (),
) -> RequestFacts:
    return RequestFacts(request_id, list(token_ids), scope, media)


def offer(geo: Geometry, start_tokens: int, end_tokens: int, lease: bytes = b"l" * 16) -> Offer:
    size, chunk = geo.tokens_per_block, geo.chunk_blocks
    first = start_tokens // size // chunk
    stop = -(-(end_tokens // size) // chunk)
    slots = np.zeros((stop - first, geo.num_groups * geo.num_ranks), dtype=SLOT_DTYPE)
    slots["slot"] = np.arange(first, stop)[:, None]
    slots["generation"] = 1
    return Offer(LeaseId(lease), EPOCH, first, slots, start_tokens, end_tokens)


def standing(state: RequestState) -> Offer | None:
    """The offer now; through a call, so that type checkers do not assume it unchanged."""
    return state.offer

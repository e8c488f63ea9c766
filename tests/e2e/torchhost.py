"""Engines of the conformance host, with and without kvkeep, for end-to-end tests. Needs torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from adapter.config import make_kv_connector_config
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions

BLOCK = 16


def llm_args(model: Path, url: str | None, **changes: Any) -> LlmArgs:
    connector = None
    if url is not None:
        made = make_kv_connector_config(url)
        connector = KvCacheConnectorConfig(
            connector_module=made.connector_module,
            connector_scheduler_class=made.connector_scheduler_class,
            connector_worker_class=made.connector_worker_class,
            server_url=made.server_url,
        )
    partial = changes.pop("partial", False)
    dtype = changes.pop("kv_dtype", "auto")
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=partial, dtype=dtype)
    return LlmArgs(
        model=str(model), kv_cache_config=cache, kv_connector_config=connector, **changes
    )


@contextmanager
def engine(
    model: Path,
    url: str | None,
    num_blocks: int = 64,
    options: HostOptions | None = None,
    **more: Any,
) -> Iterator[HostEngine]:
    options = options or HostOptions()
    if url is None:  # what others are compared with, on whatever device those are
        options = replace(options, device="host")
    made = HostEngine(llm_args(model, url, **more), num_blocks, options=options)
    try:
        yield made
    finally:
        made.shutdown()
        if url is not None:
            made.connector.worker.shutdown()


def prompt(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 250) for _ in range(count)]


def same(one: Any, other: Any) -> bool:
    """Equal tokens and bit-equal logits."""
    return one.tokens == other.tokens and all(
        torch.equal(a, b) for a, b in zip(one.logits, other.logits, strict=True)
    )


def without_loads_ms(host: HostEngine) -> tuple[str, float]:
    """The longest hook without a load, bring-up left out."""
    rows = [
        (float(row["max_us"]), str(row["hook"]))  # type: ignore[arg-type]
        for row in host.hooks.as_rows()
        if not row["with_load"]
        and row["hook"] not in ("register_kv_caches", "wait_for_initialization")
    ]
    longest_us, name = max(rows)
    return name, longest_us / 1000

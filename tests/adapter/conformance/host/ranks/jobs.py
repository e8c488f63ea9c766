"""Jobs for tests, without a connector unless one is named, and plug-ins that run in their ranks."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.forward import ForwardModel
from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.payload import PayloadModel
from adapter.conformance.host.ranks.injection import Injector
from adapter.conformance.host.weights import TINY, write_model_dir

BLOCK = 4
WAIT_S = 60.0


def model_dir(path: Path) -> Path:
    return write_model_dir(path, replace(TINY, max_position_embeddings=128))


def llm_args(model: Path, worker: str = "", **changes: Any) -> LlmArgs:
    """Arguments; ``worker`` names a worker class of the host's test connectors."""
    connector = None
    if worker:
        connector = KvCacheConnectorConfig(
            connector_module="tests.adapter.conformance.host.ranks.connectors",
            connector_scheduler_class="RankScheduler",
            connector_worker_class=worker,
        )
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=False)
    return LlmArgs(
        model=str(model), kv_cache_config=cache, kv_connector_config=connector, **changes
    )


def prompt(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 250) for _ in range(count)]


def note_rank(rank: int, injector: Injector) -> None:
    """A plug-in."""
    injector.reach(f"plugged into rank {rank}")


def payload(rank: int, size: int) -> ForwardModel:
    """A forward of the job's own."""
    return PayloadModel(BLOCK, bytes_per_token=rank + size)


def page_bytes(engine: HostEngine) -> int:
    """To be called in a rank."""
    return int(engine.pool[0].numel())


def environment(engine: object) -> dict[str, str]:
    """To be called in a rank."""
    return {name: value for name, value in os.environ.items() if name.startswith("TRTLLM_")}


def fail(engine: object) -> None:
    """To be called in a rank."""
    raise ValueError("as asked")


class UnpicklableError(Exception):
    """Its constructor wants more than its message."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def fail_unpicklably(engine: object) -> None:
    """To be called in a rank."""
    raise UnpicklableError(1, 2)

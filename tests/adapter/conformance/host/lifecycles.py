"""Engines with recording connectors, for the tests of what can happen to a request."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from adapter.conformance.host.comm import Communicator
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from tests.adapter.conformance.host.connectors import CALLS, cache_config, connector_config

WAIT_S = 20.0
COUNTER = itertools.count()


def engine(
    url: str = "",
    *,
    kind: str = "Recording",
    num_blocks: int = 32,
    args: dict[str, Any] | None = None,
    comm: Communicator | None = None,
    **options: Any,
) -> HostEngine:
    """An engine of a payload model with pages of 8 tokens and two layers."""
    arguments = LlmArgs(
        "model",
        kv_cache_config=cache_config(8),
        kv_connector_config=connector_config(kind, url or f"plain://lifecycle-{next(COUNTER)}"),
        tensor_parallel_size=comm.size if comm is not None else 1,
        **(args or {}),
    )
    model = PayloadModel(8, num_layers=2)
    return HostEngine(arguments, num_blocks, model=model, options=HostOptions(**options), comm=comm)


def calls_of(host: HostEngine) -> list[tuple[str, str, Any]]:
    config = host.llm_args.kv_connector_config
    assert config is not None
    return CALLS[str(config.server_url)]


def names_of(host: HostEngine) -> list[str]:
    return [name for name, _, _ in calls_of(host)]


def details_of(host: HostEngine, name: str) -> list[Any]:
    return [detail for called, _, detail in calls_of(host) if called == name]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.001)


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return [seed * 1000 + i for i in range(num_tokens)]

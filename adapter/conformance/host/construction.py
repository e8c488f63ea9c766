"""Making a connector's objects, as bring-up does (host contract §4, step 2; §11).

Worker and scheduler are constructed concurrently on two threads, and either may wait for the
other. Only the leader, or every rank under attention DP, has a scheduler. Attention DP needs both
classes to have opted in.

Must not know: what the objects do. The caller's (main) thread and two of its own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from adapter.conformance.host.errors import HostError
from adapter.trtllm_api import (
    CONFORMANCE_EPOCH,
    KvCacheConnectorScheduler,
    KvCacheConnectorWorker,
)


@contextmanager
def playing(epoch: str) -> Iterator[None]:
    """Say which epoch's interface is played while a connector is brought up.

    Feature probes find the same base classes in every epoch here; they are answered from this
    environment variable (``adapter.trtllm_api.epoch_features``).

    Args:
        epoch: ``E1`` to ``E4``.
    """
    before = os.environ.get(CONFORMANCE_EPOCH)
    os.environ[CONFORMANCE_EPOCH] = epoch
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CONFORMANCE_EPOCH, None)
        else:
            os.environ[CONFORMANCE_EPOCH] = before


def construct(llm_args: Any, *, has_scheduler: bool, adp: bool) -> tuple[Any, Any]:
    """Construct what this rank needs, concurrently.

    Args:
        llm_args: Names module and classes in ``kv_connector_config``.
        has_scheduler: Whether this rank has a scheduler.
        adp: Whether attention is data parallel.

    Returns:
        The scheduler (None on a follower) and the worker.

    Raises:
        ValueError: If attention is data parallel and a class has not opted in, or offers are asked
            for early and the scheduler has no ``cancel_load`` of its own (§5, aggressive mode).
    """
    config = llm_args.kv_connector_config
    module = importlib.import_module(config.connector_module)
    scheduler_class = getattr(module, config.connector_scheduler_class)
    worker_class = getattr(module, config.connector_worker_class)
    is_aggressive = getattr(config, "aggressive_prefix_budgeting", False)
    if is_aggressive and not takes_offers_back(scheduler_class):
        raise ValueError(f"{scheduler_class.__name__} does not override cancel_load")
    for part in (scheduler_class, worker_class) if adp else ():
        if not getattr(part, "supports_attention_dp", False):
            raise ValueError(
                f"{part.__name__} does not support attention DP (supports_attention_dp)"
            )
    with ThreadPoolExecutor(2, thread_name_prefix="construct") as pool:
        worker = pool.submit(worker_class, llm_args)
        scheduler = pool.submit(scheduler_class, llm_args) if has_scheduler else None
        return scheduler.result() if scheduler is not None else None, worker.result()


def takes_offers_back(scheduler_class: type) -> bool:
    """Whether a connector's scheduler has a ``cancel_load`` of its own.

    Args:
        scheduler_class: The connector's.
    """
    own = getattr(scheduler_class, "cancel_load", None)
    return own not in (None, getattr(KvCacheConnectorScheduler, "cancel_load", None))


def check_prefix_loads(scheduler: Any, worker: Any) -> None:
    """Hold a connector to E4's three methods for reserved prefixes: all or none (§3).

    Args:
        scheduler: The connector's scheduler object, or None on a follower.
        worker: Its worker object.

    Raises:
        ValueError: If some are there.
    """
    of_scheduler = ("reserve_prefix", "release_prefix_reservation")
    wanted: list[tuple[Any, type, str]] = [
        (scheduler, KvCacheConnectorScheduler, name) for name in of_scheduler
    ]
    wanted.append((worker, KvCacheConnectorWorker, "get_finished_prefix_loads"))
    has = {
        name: getattr(type(part), name, None) not in (None, getattr(base, name, None))
        for part, base, name in wanted
        if part is not None
    }
    if scheduler is not None and any(has.values()) and not all(has.values()):
        lacking = ", ".join(name for name, is_own in has.items() if not is_own)
        raise ValueError(f"reserved prefixes need three methods, the connector lacks {lacking}")


def check_groups(scheduler: Any, num_groups: int) -> None:
    """Hold a connector to what several layer groups ask for (host contract §3).

    Args:
        scheduler: The connector's scheduler object.
        num_groups: Layer groups of the cache.

    Raises:
        HostError: If there are several and a per-group method is the base's default.
    """
    for name in ("update_state_after_alloc_by_layer_group", "request_finished_by_layer_group"):
        own = getattr(type(scheduler), name, None)
        if num_groups > 1 and own in (None, getattr(KvCacheConnectorScheduler, name, None)):
            raise HostError(f"{num_groups} layer groups: the connector does not override {name}")

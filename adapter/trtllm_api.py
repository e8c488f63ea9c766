"""The version shim: the one module that may import ``tensorrt_llm``.

It finds the KV connector interface of the installed host (host contract §1:
new import path first, then the old one), supplies equivalent base classes when
no host is installed, and reads what differs between host versions from request
objects. Features are detected, never derived from version strings.

Must not know: sockets, pages, the protocol. Runs in the engine's process, on
whatever thread asks; holds no state beyond the classes chosen at import.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from adapter.trtllm_fallback import (
    FallbackRequestData,
    FallbackScheduler,
    FallbackSchedulerOutput,
    FallbackWorker,
)
from adapter.trtllm_fallback import RequestDataE1 as RequestDataE1

CONNECTOR_MODULES: Final = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
)
"""Import paths of the interface, newest first. Source: host contract §1."""

CONFORMANCE_RANK: Final = "TRTLLM_CONFORMANCE_RANK"
"""Environment variable: this process's rank where no host is installed or one is played."""

CONFORMANCE_EPOCH: Final = "TRTLLM_CONFORMANCE_EPOCH"
"""Environment variable: the epoch whose interface the conformance host plays, ``E1`` to ``E4``.

The host sets it in its own process while it brings a connector up. It counts where a real host is
installed as well: what that one can do is not what the played one does.
"""

MULTIMODAL_HASH_INTS: Final = 8
"""int32 values in one media item's digest. Source: host contract §8."""


def find_host_module(
    load: Callable[[str], ModuleType] = importlib.import_module,
) -> tuple[ModuleType | None, str]:
    """Import the host's connector interface from wherever it lives.

    Args:
        load: Imports a module by its dotted name.

    Returns:
        The module and ``""``, or None and why no path worked.
    """
    reasons = []
    for name in CONNECTOR_MODULES:
        try:
            return load(name), ""
        except (ImportError, OSError) as error:  # OSError: a host without its CUDA libraries
            reasons.append(f"{name}: {error}")
    return None, "; ".join(reasons)


_HOST, HOST_ABSENT_REASON = find_host_module()

if TYPE_CHECKING or _HOST is None:
    KvCacheConnectorScheduler = FallbackScheduler
    KvCacheConnectorWorker = FallbackWorker
    RequestData = FallbackRequestData
    SchedulerOutput = FallbackSchedulerOutput
else:
    KvCacheConnectorScheduler = _HOST.KvCacheConnectorScheduler
    KvCacheConnectorWorker = _HOST.KvCacheConnectorWorker
    RequestData = _HOST.RequestData
    SchedulerOutput = _HOST.SchedulerOutput


@dataclass(frozen=True)
class EpochFeatures:
    """What the installed host's interface has, found by looking (host contract §1)."""

    request_data_salt: bool
    block_hashes: bool
    priorities: bool
    layer_groups: bool
    wait_for_initialization: bool
    attention_dp: bool
    reserve_prefix: bool
    cancel_load: bool
    request_reset: bool
    shutdown: bool


CONFORMANCE_FEATURES: Final[Mapping[str, EpochFeatures]] = {
    "E1": EpochFeatures(*[False] * 10),
    "E2": EpochFeatures(True, True, True, False, True, False, False, False, False, False),
    "E3": EpochFeatures(True, True, True, True, True, True, False, False, False, False),
    "E4": EpochFeatures(*[True] * 10),
}
"""What each epoch's interface has. Source: host contract §1, §3."""


def epoch_features(
    scheduler_base: type | None = None, request_data: type = RequestData
) -> EpochFeatures:
    """Probe a scheduler base class and a request report for optional parts.

    Args:
        scheduler_base: Class whose methods are looked up; by default the interface in
            use. The conformance host, which plays every epoch on one set of base
            classes, installed or not, says by ``CONFORMANCE_EPOCH`` which one it plays.
        request_data: Dataclass whose fields are looked up.

    Returns:
        One flag per optional feature.
    """
    played = os.environ.get(CONFORMANCE_EPOCH, "")
    if scheduler_base is None and played in CONFORMANCE_FEATURES:
        return CONFORMANCE_FEATURES[played]
    base = scheduler_base or KvCacheConnectorScheduler
    fields = getattr(request_data, "__dataclass_fields__", {})
    return EpochFeatures(
        request_data_salt="cache_salt" in fields or "cache_salt_id" in fields,
        block_hashes="block_hashes" in fields,
        priorities="priorities" in fields,
        layer_groups="new_block_ids_by_layer_group" in fields,
        wait_for_initialization=hasattr(base, "wait_for_initialization"),
        attention_dp=hasattr(base, "supports_attention_dp"),
        reserve_prefix=hasattr(base, "reserve_prefix"),
        cancel_load=hasattr(base, "cancel_load"),
        request_reset=hasattr(base, "request_reset"),
        shutdown=hasattr(base, "shutdown"),
    )


def keeps_offers(llm_args: Any) -> bool:
    """Whether the host settles an offer in any later iteration, or never (host contract §5).

    Args:
        llm_args: the engine's arguments; a branch's connector settings have the switch.
    """
    config = getattr(llm_args, "kv_connector_config", None)
    return getattr(config, "aggressive_prefix_budgeting", False) is True


def host_is_installed() -> bool:
    """Whether the base classes above come from a real host."""
    return _HOST is not None


def connector_config_class() -> type | None:
    """The host's ``KvCacheConnectorConfig``, or None without a host (host contract §1)."""
    if _HOST is None:
        return None
    module = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    found: type = module.KvCacheConnectorConfig
    return found


def host_version() -> str:
    """The host's own version string, or ``"none"`` without a host."""
    if _HOST is None:
        return "none"
    package = importlib.import_module("tensorrt_llm")
    return str(getattr(package, "__version__", "unknown"))


def mpi_rank() -> int:
    """This process's rank among the engine's (host contract §1).

    Without a host, or while one is played: what ``CONFORMANCE_RANK`` says, 0 if it says nothing.
    """
    if _HOST is None or os.environ.get(CONFORMANCE_EPOCH):
        return int(os.environ.get(CONFORMANCE_RANK, "0"))
    return int(importlib.import_module("tensorrt_llm").mpi_rank())


def cache_salt_of(request: Any) -> str | int | None:
    """The request's salt, whichever attribute this host version has.

    Args:
        request: The host's request, or its ``RequestData`` report.

    Returns:
        The text salt, the older integer salt, or None when unsalted. An empty
        text is a salt of its own only to hosts, so it reads as unsalted.

    Raises:
        TypeError: If the salt is neither text nor an integer; sharing across a
            salt that was not understood would leak between tenants.
    """
    for name in ("cache_salt", "cache_salt_id"):
        salt = getattr(request, name, None)
        if salt is None or salt == "":
            continue
        if isinstance(salt, bool) or not isinstance(salt, (str, int)):
            raise TypeError(f"{name} is a {type(salt).__name__}, expected str or int")
        return salt
    return None


def lora_id_of(request: Any) -> int | None:
    """The request's LoRA task id, or None for the base model (host contract §3)."""
    lora = getattr(request, "lora_task_id", None)
    return None if lora is None else int(lora)


def is_generation_only(request: Any) -> bool:
    """Whether the request only generates; an attribute or a method by version (§3)."""
    value = getattr(request, "is_generation_only_request", False)
    return bool(value() if callable(value) else value)


@dataclass(frozen=True)
class MultimodalItems:
    """The media of one request, in prompt order.

    Attributes:
        hashes: One 32-byte digest per item, or empty if the host gave none (or
            gave fewer than items), in which case the cache must be bypassed.
        positions: First token of each item.
        lengths: Tokens of each item.
    """

    hashes: tuple[bytes, ...]
    positions: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def has_hashes(self) -> bool:
        """Whether each item can be told from others by content."""
        return bool(self.hashes)


def multimodal_items_of(request: Any) -> MultimodalItems | None:
    """The request's media items, or None when it has no media.

    Args:
        request: The host's request. Each of its ``multimodal_hashes`` items is
            eight int32 values (host contract §8).

    Returns:
        Items with digests where every item has a well-formed one and a
        position; items without digests otherwise; None without any media.
    """
    raw_hashes = _list_of(request, "multimodal_hashes")
    positions = tuple(int(value) for value in _list_of(request, "multimodal_positions"))
    lengths = tuple(int(value) for value in _list_of(request, "multimodal_lengths"))
    if not (raw_hashes or positions or lengths):
        return None
    digests = tuple(_media_digest(item) for item in raw_hashes)
    complete = len(digests) == len(positions) == len(lengths) and None not in digests
    hashes = tuple(digest for digest in digests if digest is not None) if complete else ()
    return MultimodalItems(hashes, positions, lengths)


def _list_of(request: Any, name: str) -> Sequence[Any]:
    value = getattr(request, name, None)
    return () if value is None else list(value)


def _media_digest(item: Any) -> bytes | None:
    values = list(item)
    if len(values) != MULTIMODAL_HASH_INTS:
        return None
    # Some versions print the int32 values unsigned; the 32 bits are what counts.
    return np.array([int(v) & 0xFFFFFFFF for v in values], dtype="<u4").tobytes()

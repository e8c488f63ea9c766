"""What an installed TensorRT-LLM has around its connector interface, beside what we go by.

The config that names a connector, presets, requests as a query shows them, cache layouts. Must not
know: the interface's classes, engines. Runs in the kit's main thread; imports by name, where the
caller says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

Load = Callable[[str], ModuleType]

_NAMED: Final = ("connector_module", "connector_scheduler_class", "connector_worker_class")
_CONFIG_FIELDS: Final = {
    "E1": _NAMED,
    "E2": ("connector", *_NAMED, "server_url"),
    "E3": ("connector", *_NAMED, "server_url", "mooncake_store"),
    "E4": ("connector", *_NAMED, "server_url", "mooncake_store", "aggressive_prefix_budgeting"),
}
"""Fields of ``KvCacheConnectorConfig``. Source: host contract §2."""

_REQUEST: Final = (
    *("request_id", "get_tokens", "lora_task_id"),
    *("multimodal_hashes", "multimodal_positions", "multimodal_lengths"),
    *("is_generation_only_request", "kv_cache_retention_config"),
)
_SALTS: Final = ("cache_salt", "cache_salt_id")
_LAYOUT: Final = ("tokens_per_block", "groups")
_PACKAGE: Final = "tensorrt_llm"
_CONNECTORS: Final = f"{_PACKAGE}._torch.pyexecutor.connectors"


def around(load: Load, epoch: str) -> Iterator[str]:
    """Compares what lies around the interface.

    Args:
        load: imports a module by its dotted name.
        epoch: which the interface looks like.

    Yields:
        One line per difference, and one that names the presets.
    """
    yield from _config(load, epoch)
    yield from _presets(load, epoch)
    yield from _requests(load)
    if epoch in ("E3", "E4"):
        yield from _layouts(load)
    package = _module(load, _PACKAGE)
    if package is not None and not callable(getattr(package, "mpi_rank", None)):
        yield f"{_PACKAGE}.mpi_rank: not there; it says which rank a process is"


def _config(load: Load, epoch: str) -> Iterator[str]:
    name = "KvCacheConnectorConfig"
    found = getattr(_module(load, f"{_PACKAGE}.llmapi.llm_args"), name, None)
    if found is None:
        yield f"{name}: not there"
        return
    theirs, ours = _fields_of(found), set(_CONFIG_FIELDS.get(epoch, _CONFIG_FIELDS["E4"]))
    for field in sorted(ours - theirs):
        why = "a connector cannot be named" if field in _NAMED else f"in {epoch} it was expected"
        yield f"{name}.{field}: no such field in this version; {why}"
    for field in sorted(theirs - ours):
        yield f"{name}.{field}: a field only there"


def _presets(load: Load, epoch: str) -> Iterator[str]:
    registry = getattr(_module(load, f"{_CONNECTORS}.registry"), "CONNECTOR_REGISTRY", None)
    if registry is None:
        if epoch != "E1":
            yield "presets: no CONNECTOR_REGISTRY; module and classes have to be named"
        return
    yield f"presets: {', '.join(sorted(registry)) or 'none'}; others are named by module and class"


def _requests(load: Load) -> Iterator[str]:
    name = "LlmRequest"
    found = getattr(_module(load, f"{_PACKAGE}.bindings.internal.batch_manager"), name, None)
    if found is None:
        yield f"{name}: not there; what a query is told of a request is not known"
        return
    for attribute in _REQUEST:
        if not hasattr(found, attribute):
            yield f"{name}.{attribute}: not there in this version"
    if not any(hasattr(found, salt) for salt in _SALTS):
        yield f"{name}.cache_salt, .cache_salt_id: neither is there; tenants cannot be told apart"


def _layouts(load: Load) -> Iterator[str]:
    name = "KvCacheLayout"
    found = getattr(_module(load, f"{_CONNECTORS}.kv_cache_layout"), name, None)
    if found is None:
        yield f"{name}: not there; V2 caches cannot be described"
        return
    for field in _LAYOUT:
        if field not in _fields_of(found) and not hasattr(found, field):
            yield f"{name}.{field}: not there in this version"


def _fields_of(cls: Any) -> set[str]:
    for name in ("model_fields", "__dataclass_fields__", "__annotations__"):
        fields = getattr(cls, name, None)
        if fields:
            return set(fields)
    return set()


def _module(load: Load, name: str) -> ModuleType | None:
    try:
        return load(name)
    except Exception:  # noqa: BLE001 - a host without its CUDA libraries may raise anything
        return None

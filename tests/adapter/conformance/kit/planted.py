"""Interfaces of each epoch as an installed TensorRT-LLM would have them, from the host contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import make_dataclass
from types import ModuleType
from typing import Any

from adapter.trtllm_api import CONNECTOR_MODULES

EPOCHS = ("E1", "E2", "E3", "E4")
FIVE = ("request_id", "new_tokens", "new_block_ids", "computed_position", "num_scheduled_tokens")
CONNECTORS = CONNECTOR_MODULES[0].rpartition(".")[0]


class Scheduler(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> Any: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> Any: ...


class Worker(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def get_connector_meta(self) -> Any:
        return self._metadata

    def register_forward_pass_callable(self) -> Any:
        return None

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...

    @abstractmethod
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> Any: ...


def _nothing(self: Any, *arguments: Any) -> None: ...


def _by_group(self: Any, request: Any, block_ids: Any) -> None: ...


def _layout(self: Any, layout: Any) -> None: ...


def _classes(epoch: str) -> tuple[type, type, type, type]:
    scheduler: dict[str, Any] = {}
    worker: dict[str, Any] = {}
    fields = list(FIVE)
    output = ["new_requests", "cached_requests"]
    if epoch != "E1":
        fields += ["block_hashes", "priorities", "cache_salt"]
        scheduler["wait_for_initialization"] = lambda self: None
    if epoch in ("E3", "E4"):
        fields.append("new_block_ids_by_layer_group")
        output.append("attention_dp_rank")
        scheduler["update_state_after_alloc_by_layer_group"] = _by_group
        scheduler["request_finished_by_layer_group"] = _by_group
        worker["register_kv_cache_layout"] = _layout
        scheduler["supports_attention_dp"] = worker["supports_attention_dp"] = False
    if epoch == "E4":
        names = ("cancel_load", "request_reset", "reserve_prefix", "release_prefix_reservation")
        scheduler |= dict.fromkeys((*names, "shutdown"), _nothing)
        worker |= {"shutdown": _nothing, "get_finished_prefix_loads": _nothing}
        worker["capacity_only"] = False
    return (
        type("KvCacheConnectorScheduler", (Scheduler,), scheduler),
        type("KvCacheConnectorWorker", (Worker,), worker),
        make_dataclass("RequestData", fields),
        make_dataclass("SchedulerOutput", output),
    )


def _config(epoch: str) -> type:
    fields = ["connector_module", "connector_scheduler_class", "connector_worker_class"]
    fields += ["connector", "server_url"] if epoch != "E1" else []
    fields += ["mooncake_store"] if epoch in ("E3", "E4") else []
    fields += ["aggressive_prefix_budgeting"] if epoch == "E4" else []
    # As pydantic says it.
    return type("KvCacheConnectorConfig", (), {"model_fields": dict.fromkeys(fields)})


class Request:
    request_id = lora_task_id = cache_salt = kv_cache_retention_config = 0
    multimodal_hashes = multimodal_positions = multimodal_lengths = None
    is_generation_only_request = False

    def get_tokens(self, beam: int) -> list[int]:
        return []


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module


def planted(epoch: str) -> Callable[[str], Any]:
    """What imports modules of a TensorRT-LLM of one epoch, and nothing else."""
    names = ("KvCacheConnectorScheduler", "KvCacheConnectorWorker", "RequestData")
    members = dict(zip((*names, "SchedulerOutput"), _classes(epoch), strict=True))
    place = CONNECTOR_MODULES[epoch == "E1"]
    modules = {
        place: _module(place, **members),
        "tensorrt_llm": _module("tensorrt_llm", mpi_rank=lambda: 0),
        "tensorrt_llm.llmapi.llm_args": _module("a", KvCacheConnectorConfig=_config(epoch)),
        "tensorrt_llm.bindings.internal.batch_manager": _module("b", LlmRequest=Request),
    }
    if epoch != "E1":
        presets = {"lmcache": None, "kvbm": None}
        modules[f"{CONNECTORS}.registry"] = _module("c", CONNECTOR_REGISTRY=presets)
    if epoch in ("E3", "E4"):
        layout = make_dataclass("KvCacheLayout", ["tokens_per_block", "groups"])
        modules[f"{CONNECTORS}.kv_cache_layout"] = _module("d", KvCacheLayout=layout)

    def load(name: str) -> ModuleType:
        if name not in modules:
            raise ImportError(f"No module named {name!r}")
        return modules[name]

    return load

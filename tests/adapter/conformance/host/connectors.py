"""Small connectors that the host's tests drive; named by module and class in the config.

``server_url`` says what one does: ``dict://NAME?async`` keeps pages in this process's dictionary
NAME; ``rule://NAME`` breaks one rule; anything else does nothing but record.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig
from adapter.conformance.host.streams import HostEvent
from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker, cache_salt_of

if TYPE_CHECKING:  # torch is not needed here
    from adapter.conformance.host.hardware import WorkEvent, WorkStream

CALLS: dict[str, list[tuple[str, str, Any]]] = {}
STORES: dict[str, dict[bytes, bytes]] = {}


def connector_config(kind: str, url: str) -> KvCacheConnectorConfig:
    CALLS[url] = []
    return KvCacheConnectorConfig(
        connector_module=__name__,
        connector_scheduler_class=f"{kind}Scheduler",
        connector_worker_class=f"{kind}Worker",
        server_url=url,
    )


def cache_config(tokens_per_block: int = 8, **changes: Any) -> KvCacheConfig:
    return KvCacheConfig(tokens_per_block=tokens_per_block, **changes)


class Recording:
    """Notes each call with its thread."""

    def setup(self, llm_args: Any) -> None:
        self.url = llm_args.kv_connector_config.server_url
        self.calls = CALLS[self.url]
        self.rule = self.url.removeprefix("rule://")

    def note(self, name: str, detail: Any = None) -> None:
        self.calls.append((name, threading.current_thread().name, detail))

    def shutdown(self) -> None:
        self.note("shutdown")


class RecordingScheduler(KvCacheConnectorScheduler, Recording):
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.setup(llm_args)
        self.note("scheduler")

    def wait_for_initialization(self) -> None:
        self.note("wait_for_initialization")

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        self.note("query", (request, num_computed_tokens))
        answers: dict[str, Any] = {
            "zero-async": (0, True),
            "whole-prompt": (len(request.get_tokens(0)) - num_computed_tokens, False),
            "negative": (-1, False),
            "bool-count": (True, False),
            "int-flag": (8, 1),
            "no-pair": 8,
            "async": (8, True),
            "sync": (8, False),
        }
        if self.rule == "query-raises":
            raise OSError("query-raises")
        answer: tuple[int, bool] = answers.get(self.rule, (0, False))
        return answer

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        self.note("alloc", (request.request_id, block_ids))

    def build_connector_meta(self, scheduler_output: Any) -> object:
        self.note("build", scheduler_output)
        if self.rule == "metadata":
            return threading.Lock()
        return {"iteration": len(self.calls)}

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        self.note("request_finished", (request.request_id, cache_block_ids))
        if self.rule == "finished-raises":
            raise OSError("finished-raises")
        if self.rule == "finished-int":
            return 1  # type: ignore[return-value]
        return bool(self.rule == "keep")

    # What the newest epoch calls if it is there.

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        self.note("cancel_load", (request.request_id, start, end))

    def request_reset(self, request: Any) -> None:
        self.note("request_reset", request.request_id)


class RecordingWorker(KvCacheConnectorWorker, Recording):
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.setup(llm_args)
        self.announced: list[tuple[list[int], list[int]]] = []
        self.answers: list[tuple[list[int], list[int]]] = []
        self.note("worker")

    def register_forward_pass_callable(self) -> Any:
        self.note("register_forward_pass_callable")
        return lambda: self.note("forward_callable")

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        self.note("register_kv_caches", tuple(kv_cache_tensor.shape))

    def bind_connector_meta(self, metadata: object) -> None:
        self.note("bind", metadata)
        super().bind_connector_meta(metadata)

    def start_load_kv(self, stream: Any) -> None:
        self.note("start_load_kv", stream.name)
        if self.rule == "load-raises":
            raise OSError("load-raises")

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        self.note("wait_for_layer_load", (layer_idx, stream.name))

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        self.note("save_kv_layer", (layer_idx, stream.name))
        if self.rule == "layer-raises":
            raise OSError("layer-raises")

    def wait_for_save(self, stream: Any) -> None:
        self.note("wait_for_save", stream.name)
        if self.rule == "stream-raises":
            stream.enqueue(self.fail)

    def fail(self) -> None:
        raise OSError(self.rule)

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        self.note("get_finished", (finished_gen_req_ids, started_loading_req_ids))
        if self.rule == "unknown-saved":
            return [77], []
        if self.rule == "unknown-loaded":
            return [], [77]
        if self.rule == "twice":
            return finished_gen_req_ids * 2, []
        return self.answers.pop(0) if self.answers else ([], [])


# --- a connector that works --------------------------------------------------------------------


@dataclass
class Known:
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    scope: bytes = b""
    num_saved: int = 0
    load: tuple[int, int] | None = None


class DictScheduler(KvCacheConnectorScheduler):
    """Looks up and names pages of a dictionary; saves each full block once its forward runs."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.store = STORES.setdefault(llm_args.kv_connector_config.server_url, {})
        self.is_async = "async" in llm_args.kv_connector_config.server_url
        self.keep = "keep" in llm_args.kv_connector_config.server_url
        self.size = llm_args.kv_cache_config.tokens_per_block
        self.known: dict[int, Known] = {}
        self.async_loads: list[tuple[int, int, bytes]] = []

    def new(self, request: Any) -> Known:
        scope = repr((cache_salt_of(request), request.lora_task_id)).encode()
        return Known(request.get_tokens(0), scope=scope)

    def keys(self, known: Known, num_tokens: int) -> list[bytes]:
        keys, parent = [], known.scope
        for begin in range(0, num_tokens - num_tokens % self.size, self.size):
            block = array("i", known.tokens[begin : begin + self.size]).tobytes()
            parent = hashlib.sha256(parent + block).digest()
            keys.append(parent)
        return keys

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        known = self.known[request.request_id] = self.new(request)
        if num_computed_tokens % self.size:
            return 0, False
        keys = self.keys(known, len(known.tokens) - 1)
        first = last = num_computed_tokens // self.size
        while last < len(keys) and keys[last] in self.store:
            last += 1
        if last == first:
            return 0, False
        known.load = (first, last)
        return (last - first) * self.size, self.is_async

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        # Never queried when the host's reuse is off (host contract §2).
        known = self.known.setdefault(request.request_id, self.new(request))
        known.blocks = list(block_ids)
        if known.load and self.is_async:
            self.async_loads += self.loads(request.request_id, known)

    def loads(self, request_id: int, known: Known) -> list[tuple[int, int, bytes]]:
        if known.load is None:
            return []
        keys = self.keys(known, len(known.tokens))
        first, last = known.load
        known.load = None
        return [(request_id, known.blocks[i], keys[i]) for i in range(first, last)]

    def build_connector_meta(self, scheduler_output: Any) -> object:
        loads, self.async_loads = self.async_loads, []
        saves = []
        for data in scheduler_output.new_requests:
            known = self.known[data.request_id]
            assert known.tokens == data.new_tokens
            assert known.blocks == data.new_block_ids
            mine = self.loads(data.request_id, known)
            loads += mine
            # The reported position is the device match: what is loaded comes on top.
            saves += self.saves(data, known, len(mine) * self.size)
        for data in scheduler_output.cached_requests:
            known = self.known[data.request_id]
            known.tokens += data.new_tokens
            known.blocks += data.new_block_ids
            saves += self.saves(data, known, 0)
        return {"loads": loads, "saves": saves}

    def saves(self, data: Any, known: Known, num_loaded: int) -> list[tuple[int, bytes]]:
        computed = data.computed_position + num_loaded + data.num_scheduled_tokens
        valid = min(len(known.tokens), computed)
        keys = self.keys(known, valid)
        chosen = [(known.blocks[i], keys[i]) for i in range(known.num_saved, len(keys))]
        known.num_saved = len(keys)
        return [(block, key) for block, key in chosen if key not in self.store]

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        return self.known.pop(request.request_id, None) is not None and self.keep


class DictWorker(KvCacheConnectorWorker):
    """Copies on M; asynchronous loads and kept saves are reported once their event passed."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.store = STORES.setdefault(llm_args.kv_connector_config.server_url, {})
        self.is_async = "async" in llm_args.kv_connector_config.server_url
        self.loading: dict[int, WorkEvent] = {}
        self.saving: dict[int, WorkEvent] = {}
        self.last_save: WorkEvent = HostEvent()  # never recorded: done

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        import torch

        self.pages = kv_cache_tensor.view(torch.uint8).view(kv_cache_tensor.shape[0], -1).numpy()

    def start_load_kv(self, stream: WorkStream) -> None:
        loads = self._metadata["loads"]  # type: ignore[index]
        for _, block, key in loads:
            data = self.store[key]
            stream.enqueue(lambda block=block, data=data: self.fill(block, data))  # type: ignore[misc]
        if self.is_async:
            self.loading |= {request: stream.record_event() for request, _, _ in loads}

    def fill(self, block: int, data: bytes) -> None:
        self.pages[block] = array("B", data)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    def wait_for_save(self, stream: WorkStream) -> None:
        self.save(self._metadata["saves"], stream)  # type: ignore[index]

    def save(self, saves: list[tuple[int, bytes]], stream: WorkStream) -> None:
        for block, key in saves:
            stream.enqueue(lambda block=block, key=key: self.keep(block, key))  # type: ignore[misc]
        self.last_save = stream.record_event()

    def keep(self, block: int, key: bytes) -> None:
        self.store[key] = self.pages[block].tobytes()

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        self.saving |= dict.fromkeys(finished_gen_req_ids, self.last_save)
        assert set(started_loading_req_ids) <= set(self.loading)
        return self.take(self.saving), self.take(self.loading)

    def take(self, pending: dict[int, WorkEvent]) -> list[int]:
        done = [request for request, event in pending.items() if event.query()]
        for request in done:
            del pending[request]
        return done

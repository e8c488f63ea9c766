"""A connector that owes nothing to ours: pages as files of a folder that all ranks share.

It has no server. It keeps every rule that a connector for one layer group can keep, and loads
synchronously; so the kit is not bent to the connector it ships with. ``server_url`` is
``folder:///absolute/path``.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker, mpi_rank

SIZES: dict[int, int] = {}
"""Tokens of a block by identity of the arguments: the pool says it, not they."""


class Work(NamedTuple):
    page: int
    key: str


@dataclass
class Orders:
    loads: list[Work] = field(default_factory=list)
    saves: list[Work] = field(default_factory=list)
    early: list[Work] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


class Folder:
    """Where a rank's pages are."""

    def __init__(self, llm_args: Any) -> None:
        self.path = Path(llm_args.kv_connector_config.server_url.removeprefix("folder://"))
        alone = llm_args.enable_attention_dp
        self.ranks = 1 if alone else llm_args.tensor_parallel_size
        self.rank = 0 if alone else mpi_rank()
        self.model = Path(llm_args.model)
        files = [*sorted(self.model.glob("*.safetensors")), self.model / "config.json"]
        digest = hashlib.sha256(repr((self.ranks, llm_args.kv_cache_config.dtype)).encode())
        for file in files:
            digest.update(file.read_bytes())
        self.seed = digest.hexdigest()

    def file(self, key: str, rank: int) -> Path:
        return self.path / f"{key}.{rank}"

    def holds(self, key: str) -> bool:
        return all(self.file(key, rank).exists() for rank in range(self.ranks))


@dataclass
class Known:
    tokens: list[int]
    scope: str | None
    pages: list[int] = field(default_factory=list)
    num_saved: int = 0
    load: range = range(0)
    has_saves: bool = False


def scope_of(request: Any) -> str | None:
    """What tokens do not tell; None for what cannot be told."""
    salt = getattr(request, "cache_salt", None) or getattr(request, "cache_salt_id", None)
    hashes, places = request.multimodal_hashes, request.multimodal_positions
    if places and not hashes:
        return None
    return repr((salt, request.lora_task_id, hashes, places, request.multimodal_lengths))


class FolderScheduler(KvCacheConnectorScheduler):
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.folder = Folder(llm_args)
        self.reuse = llm_args.kv_cache_config.enable_block_reuse
        self.known: dict[int, Known] = {}

    def new(self, request: Any) -> Known:
        return Known(request.get_tokens(0), scope_of(request))

    @property
    def size(self) -> int:
        return SIZES[id(self._llm_args)]

    def keys(self, known: Known, num_tokens: int) -> list[str]:
        keys: list[str] = []
        parent = hashlib.sha256(
            f"{self.folder.seed} {self.size} {known.scope}".encode()
        ).hexdigest()
        for end in range(self.size, num_tokens + 1, self.size):
            block = json.dumps(known.tokens[end - self.size : end])
            parent = hashlib.sha256(f"{parent} {block}".encode()).hexdigest()
            keys.append(parent)
        return keys

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        known = self.known[request.request_id] = self.new(request)
        if not self.reuse or known.scope is None or num_computed_tokens % self.size:
            return 0, False
        keys = self.keys(known, len(known.tokens) - 1)
        first = last = num_computed_tokens // self.size
        while last < len(keys) and self.folder.holds(keys[last]):
            last += 1
        known.load = range(first, last)
        return len(known.load) * self.size, False

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        known = self.known.setdefault(request.request_id, self.new(request))
        known.pages = list(block_ids)
        honoured = getattr(request, "py_num_connector_matched_tokens", None)
        if honoured is not None:  # V2 takes up what it has pages for
            known.load = known.load[: honoured // self.size]

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        orders = Orders()
        for data in scheduler_output.new_requests:
            known = self.known[data.request_id]
            keys, load = self.keys(known, len(known.tokens)), known.load
            known.pages, known.load = list(data.new_block_ids), range(0)
            orders.loads += [Work(known.pages[i], keys[i]) for i in load]
            self.save(orders, known, data, len(load) * self.size)
        for data in scheduler_output.cached_requests:
            if data.request_id not in self.known:
                continue
            known = self.known[data.request_id]
            known.tokens += data.new_tokens
            known.pages += data.new_block_ids
            self.save(orders, known, data, 0)
        return orders

    def save(self, orders: Orders, known: Known, data: Any, num_loaded: int) -> None:
        computed = data.computed_position + num_loaded + data.num_scheduled_tokens
        if known.scope is None:
            return
        keys = self.keys(known, min(len(known.tokens), computed))
        for i in range(known.num_saved, len(keys)):
            if not self.folder.holds(keys[i]):
                orders.saves.append(Work(known.pages[i], keys[i]))
                known.has_saves = True
        known.num_saved = max(known.num_saved, len(keys))

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        known = self.known.pop(request.request_id, None)
        return known is not None and known.has_saves


class FolderWorker(KvCacheConnectorWorker):
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.folder = Folder(llm_args)
        self.saving: dict[int, Any] = {}
        self.event: Any = None

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        import torch

        num_pages, _, kv_factor, elements = kv_cache_tensor.shape
        model = json.loads((self.folder.model / "config.json").read_text())
        heads = max(1, model["num_key_value_heads"] // self.folder.ranks) if kv_factor == 2 else 1
        SIZES[id(self._llm_args)] = elements // (heads * model["head_dim"])
        self.pages = kv_cache_tensor.view(torch.uint8).view(num_pages, -1)

    def start_load_kv(self, stream: Any) -> None:
        for page, key in getattr(self._metadata, "loads", ()):
            data = self.folder.file(key, self.folder.rank).read_bytes()
            stream.enqueue(lambda page=page, data=data: self.fill(page, data))

    def fill(self, page: int, data: bytes) -> None:
        import torch

        self.pages[page] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    def wait_for_save(self, stream: Any) -> None:
        for page, key in getattr(self._metadata, "saves", ()):
            stream.enqueue(lambda page=page, key=key: self.keep(page, key))
        self.event = stream.record_event()

    def keep(self, page: int, key: str) -> None:
        file = self.folder.file(key, self.folder.rank)
        part = file.with_suffix(f".{self.folder.rank}-{os.getpid()}-{id(self)}")
        part.write_bytes(self.pages[page].numpy().tobytes())
        part.replace(file)

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        self.saving |= dict.fromkeys(finished_gen_req_ids, self.event)
        done = [one for one, event in self.saving.items() if event is None or event.query()]
        for one in done:
            del self.saving[one]
        return done, []

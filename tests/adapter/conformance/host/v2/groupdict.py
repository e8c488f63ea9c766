"""A small connector for caches of several layer groups: pages in a dictionary of the process.

It is right by construction (bytes move on M, in the iteration that names them), so what goes wrong
with it is the host's fault.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adapter.conformance.host.v2.pages import first_seen_block
from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker

if TYPE_CHECKING:  # torch is not needed here
    from adapter.conformance.host.hardware import WorkEvent, WorkStream

STORES: dict[str, dict[tuple[bytes, int], bytes]] = {}
NUM_HONOURED: dict[str, list[tuple[int, int]]] = {}
"""Per store, offered and honoured tokens of each offer."""
WINDOWS: dict[str, tuple[int, ...]] = {}
"""Per store, the groups' windows: no layout reaches the scheduler."""


@dataclass
class Known:
    tokens: list[int]
    tables: list[list[int]]
    num_saved: int = 0
    load: range = field(default_factory=lambda: range(0))
    num_loaded: int = 0


class GroupScheduler(KvCacheConnectorScheduler):
    """Offers whole blocks of which each group has what a forward behind them reads."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.url = llm_args.kv_connector_config.server_url
        self.store = STORES.setdefault(self.url, {})
        self.windows = WINDOWS[self.url]
        self.size = llm_args.kv_cache_config.tokens_per_block
        self.known: dict[int, Known] = {}
        self.loads: list[tuple[int, list[tuple[bytes, int, int]]]] = []

    def keys(self, tokens: list[int]) -> list[bytes]:
        keys, parent = [], b""
        for begin in range(0, len(tokens) - len(tokens) % self.size, self.size):
            block = array("i", tokens[begin : begin + self.size]).tobytes()
            parent = hashlib.sha256(parent + block).digest()
            keys.append(parent)
        return keys

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        tokens = request.get_tokens(0)
        known = self.known[request.request_id] = Known(tokens, [])
        assert num_computed_tokens % self.size == 0
        first, keys = num_computed_tokens // self.size, self.keys(tokens[:-1])
        for last in range(len(keys), first, -1):
            if self.holds(keys, first, last):
                known.load = range(first, last)
                return (last - first) * self.size, "async" in self.url
        return 0, False

    def holds(self, keys: list[bytes], first: int, last: int) -> bool:
        return all(
            (keys[block], group) in self.store
            for group, window in enumerate(self.windows)
            for block in range(
                max(first, first_seen_block(window, last * self.size, self.size)), last
            )
        )

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        raise AssertionError("pages come by group")

    def update_state_after_alloc_by_layer_group(
        self, request: Any, block_ids: list[list[int]]
    ) -> None:
        known = self.known[request.request_id]
        known.tables = [list(table) for table in block_ids]
        honoured = request.py_num_connector_matched_tokens
        if known.load:
            NUM_HONOURED.setdefault(self.url, []).append((len(known.load) * self.size, honoured))
        blocks = known.load[: honoured // self.size]
        assert honoured % self.size == 0
        keys = self.keys(known.tokens)
        moves = [
            (keys[block], group, table[block])
            for group, table in enumerate(known.tables)
            for block in blocks
            if table[block] >= 0 and (keys[block], group) in self.store
        ]
        if known.load:
            self.loads.append((request.request_id, moves))
            # Nothing of an async load is subtracted from the position that is reported after it.
            known.num_loaded = 0 if "async" in self.url else honoured

    def build_connector_meta(self, scheduler_output: Any) -> object:
        loads, self.loads = self.loads, []
        saves: list[tuple[bytes, int, int]] = []
        for data in scheduler_output.new_requests:
            known = self.known[data.request_id]
            assert data.new_tokens == known.tokens
            assert self.tables(data) == known.tables
            saves += self.saves(data, known)
        for data in scheduler_output.cached_requests:
            known = self.known[data.request_id]
            known.tokens += data.new_tokens
            for table, new in zip(known.tables, self.tables(data), strict=True):
                table += new
            saves += self.saves(data, known)
        return {"loads": loads, "saves": saves}

    def tables(self, data: Any) -> list[list[int]]:
        tables: list[list[int]] = data.new_block_ids_by_layer_group
        if len(self.windows) == 1:
            assert data.new_block_ids == tables[0]
        else:
            assert data.new_block_ids == []
        return tables

    def saves(self, data: Any, known: Known) -> list[tuple[bytes, int, int]]:
        computed = data.computed_position + known.num_loaded + data.num_scheduled_tokens
        known.num_loaded = 0
        keys = self.keys(known.tokens[: min(computed, len(known.tokens))])
        chosen = [
            (keys[block], group, table[block])
            for group, table in enumerate(known.tables)
            for block in range(known.num_saved, len(keys))
            # A window may have let go of the page: only what this forward reads is surely there.
            if table[block] >= 0
            and block >= first_seen_block(self.windows[group], data.computed_position, self.size)
        ]
        known.num_saved = len(keys)
        return chosen

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        assert cache_block_ids == []
        return False

    def request_finished_by_layer_group(self, request: Any, block_ids: list[list[int]]) -> bool:
        self.known.pop(request.request_id, None)
        return False


class GroupWorker(KvCacheConnectorWorker):
    """Copies on M; async loads are reported once their event passed."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.store = STORES.setdefault(llm_args.kv_connector_config.server_url, {})
        self.is_async = "async" in llm_args.kv_connector_config.server_url
        self.loading: dict[int, WorkEvent] = {}

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        raise AssertionError("a V2 cache is registered by its layout")

    def register_kv_cache_layout(self, layout: Any) -> None:
        self.groups = layout.groups

    def start_load_kv(self, stream: WorkStream) -> None:
        for request_id, moves in self._metadata["loads"]:  # type: ignore[index]
            for key, group, page in moves:
                stream.enqueue(lambda k=key, g=group, p=page: self.fill(k, g, p))  # type: ignore[misc]
            if self.is_async:
                self.loading[request_id] = stream.record_event()

    def fill(self, key: bytes, group: int, page: int) -> None:
        import torch

        data, begin = self.store[(key, group)], 0
        for region in self.groups[group].regions:
            part = bytearray(data[begin : begin + region.size])
            region.slot_tensor(page).copy_(torch.frombuffer(part, dtype=torch.uint8))
            begin += region.size

    def keep(self, key: bytes, group: int, page: int) -> None:
        regions = self.groups[group].regions
        self.store[(key, group)] = b"".join(
            region.slot_tensor(page).numpy().tobytes() for region in regions
        )

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    def wait_for_save(self, stream: WorkStream) -> None:
        for key, group, page in self._metadata["saves"]:  # type: ignore[index]
            stream.enqueue(lambda k=key, g=group, p=page: self.keep(k, g, p))  # type: ignore[misc]

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        assert set(started_loading_req_ids) <= set(self.loading)
        done = [request for request, event in self.loading.items() if event.query()]
        for request in done:
            del self.loading[request]
        return [], done

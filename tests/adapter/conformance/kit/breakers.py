"""Connectors that each break one rule; all else is the dictionary connector of the host's tests.

A class ``<Name>Scheduler`` or ``<Name>Worker`` takes the place of the dictionary's own.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from tests.adapter.conformance.host.connectors import DictScheduler, DictWorker, Known


class SoundScheduler(DictScheduler):
    """Keeps every rule that a connector without a server can keep."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.reuse = llm_args.kv_cache_config.enable_block_reuse

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if not self.reuse:
            self.known[request.request_id] = self.new(request)
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class SoundWorker(DictWorker):
    supports_attention_dp = True

    def start_load_kv(self, stream: Any) -> None:
        if self._metadata is not None:
            super().start_load_kv(stream)


class GreedyScheduler(SoundScheduler):
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        count, flag = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return (len(request.get_tokens(0)) - num_computed_tokens if count else 0), flag


class RaggedScheduler(SoundScheduler):
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        count, flag = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return (count or (1 if num_computed_tokens % self.size else 0)), flag


class PainterWorker(SoundWorker):
    def fill(self, block: int, data: bytes) -> None:
        super().fill(block, data)
        self.pages[(block + 1) % len(self.pages)] = 0


class HastyWorker(SoundWorker):
    def start_load_kv(self, stream: Any) -> None:
        for _, block, key in (self._metadata or {"loads": []})["loads"]:  # type: ignore[index]
            self.fill(block, self.store[key])


class EagerScheduler(SoundScheduler):
    def saves(self, data: Any, known: Known, num_loaded: int) -> list[tuple[int, bytes]]:
        if known.num_saved:
            return []
        keys = self.keys(known, len(known.tokens))
        known.num_saved = len(keys)
        return [pair for pair in zip(known.blocks, keys) if pair[1] not in self.store]  # noqa: B905


class DeafScheduler(SoundScheduler):
    def build_connector_meta(self, scheduler_output: Any) -> object:
        scheduler_output.cached_requests.clear()
        return super().build_connector_meta(scheduler_output)


class FragileWorker(SoundWorker):
    def start_load_kv(self, stream: Any) -> None:
        DictWorker.start_load_kv(self, stream)


class HoardingScheduler(SoundScheduler):
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        return True


class LateWorker(SoundWorker):
    def save(self, saves: list[tuple[int, bytes]], stream: Any) -> None:
        def later() -> None:
            time.sleep(0.05)
            for block, key in saves:
                self.keep(block, key)

        if saves:
            threading.Thread(target=later, daemon=True).start()


class SlowScheduler(SoundScheduler):
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        time.sleep(0.08)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class CountingScheduler(SoundScheduler):
    def build_connector_meta(self, scheduler_output: Any) -> object:
        if len(self.known) > 3:
            raise RuntimeError("too many requests that never finished")
        return super().build_connector_meta(scheduler_output)


class HookedWorker(SoundWorker):
    def start_load_kv(self, stream: Any) -> None: ...

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        if layer_idx == 0:
            DictWorker.start_load_kv(self, stream)


class CarelessScheduler(SoundScheduler):
    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.reuse = True


class FickleScheduler(SoundScheduler):
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if request.request_id in self.known:
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class HeavyScheduler(SoundScheduler):
    def build_connector_meta(self, scheduler_output: Any) -> object:
        metadata: Any = super().build_connector_meta(scheduler_output)
        return {**metadata, "ballast": bytes(2 << 20)}


class LeakyScheduler(SoundScheduler):
    def new(self, request: Any) -> Known:
        return Known(request.get_tokens(0))


class NarrowScheduler(SoundScheduler):
    def saves(self, data: Any, known: Known, num_loaded: int) -> list[tuple[int, bytes]]:
        if data.computed_position % self.size:
            known.num_saved = 1 << 20
        return super().saves(data, known, num_loaded) if known.num_saved < 1 << 20 else []


class OldScheduler(SoundScheduler):
    supports_attention_dp = False


class BitWorker(SoundWorker):
    def fill(self, block: int, data: bytes) -> None:
        super().fill(block, data[:2] + bytes([data[2] ^ 0x40]) + data[3:])


def _reach(url: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        probe.connect(url.removeprefix("ipc://"))


class BoundWorker(SoundWorker):
    """Needs its server for each load."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.url = llm_args.kv_connector_config.server_url

    def fill(self, block: int, data: bytes) -> None:
        _reach(self.url)
        super().fill(block, data)


class LoudScheduler(SoundScheduler):
    """Says so in each hook when its server is gone."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.url = llm_args.kv_connector_config.server_url

    def build_connector_meta(self, scheduler_output: Any) -> object:
        _reach(self.url)
        return super().build_connector_meta(scheduler_output)


class DemandingScheduler(SoundScheduler):
    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        _reach(llm_args.kv_connector_config.server_url)

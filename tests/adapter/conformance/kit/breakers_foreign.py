"""Connectors that each break one rule; all else is the connector of ``foreign``.

A class ``<Name>Scheduler`` or ``<Name>Worker`` takes the place of ``Folder``'s own.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar

from tests.adapter.conformance.kit.foreign import (
    FolderScheduler,
    FolderWorker,
    Known,
    Orders,
    Work,
)

__all__ = ["FolderScheduler", "FolderWorker"]


class IdleScheduler(FolderScheduler):
    """Offers nothing, which is allowed."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        return 0, False


class IdleWorker(FolderWorker):
    """Saves nothing, which is allowed."""

    def keep(self, page: int, key: str) -> None: ...


class RefusingScheduler(FolderScheduler):
    """Comes up nowhere."""

    def __init__(self, llm_args: Any) -> None:
        raise ValueError("not on this machine")


class PlainScheduler(FolderScheduler):
    """Has not opted into attention data parallelism, which is the interface's own default."""

    supports_attention_dp = False


class PlainWorker(FolderWorker):
    """Nor has it."""

    supports_attention_dp = False


class ReleasingScheduler(IdleScheduler):
    """Keeps no pages, which is allowed."""

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        super().request_finished(request, cache_block_ids)
        return False


class ReleasingWorker(IdleWorker):
    """Has nothing to keep them for."""


class SaltyScheduler(FolderScheduler):
    """Reads a field that only some epochs report."""

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        for data in scheduler_output.new_requests:
            assert data.cache_salt != ""
        return super().build_connector_meta(scheduler_output)


class LooseScheduler(FolderScheduler):
    """Says of every load, and of none, that it is asynchronous."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        count, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return count, not count


class AskedScheduler(FolderScheduler):
    """Knows only requests it was asked about."""

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        self.known[request.request_id].pages = list(block_ids)


class CrowdedScheduler(FolderScheduler):
    """Expects a request in every batch."""

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        if not scheduler_output.new_requests and not scheduler_output.cached_requests:
            raise ValueError("an empty batch")
        return super().build_connector_meta(scheduler_output)


class ImpatientWorker(FolderWorker):
    """Expects to be polled as long as pages are held."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.polled_s = time.monotonic()
        self.ended: list[int] = []

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        now_s, before_s = time.monotonic(), self.polled_s
        if self.ended and now_s - before_s > 0.5:
            raise TimeoutError("no poll for half a second")
        told, self.polled_s = self.ended, now_s
        self.ended, _ = super().get_finished(finished_gen_req_ids, started_loading_req_ids)
        return told, []


class PrematureWorker(FolderWorker):
    """Expects its pool before the first forward of the final executor."""

    num_forwards = 0

    def register_forward_pass_callable(self) -> Any:
        def after() -> None:
            self.num_forwards += 1
            if self.num_forwards > 1:  # one is the warm-up
                assert self.pages is not None

        return after


class OnceScheduler(FolderScheduler):
    """Expects each request to end once."""

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        assert request.request_id in self.known
        return super().request_finished(request, cache_block_ids)


class LongScheduler(FolderScheduler):
    """Expects each request to be reported twice before it ends."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.reported: set[int] = set()

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        self.reported |= {data.request_id for data in scheduler_output.cached_requests}
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        self.reported.remove(request.request_id)
        return super().request_finished(request, cache_block_ids)


class PartialScheduler(FolderScheduler):
    """Has one of three methods that belong together."""

    def reserve_prefix(self, request: Any, computed: int, reservation: int) -> tuple[int, bool]:
        return 0, False


class RootedWorker(FolderWorker):
    """Has a thread that outlives whatever does not shut it down."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.end = threading.Event()
        threading.Thread(target=self.end.wait, args=(20.0,), name="rooted").start()

    def shutdown(self) -> None:
        self.end.set()


class BlindScheduler(FolderScheduler):
    """Takes tokens for all there is."""

    def new(self, request: Any) -> Known:
        known = super().new(request)
        known.scope = "any"
        return known


class AliasScheduler(FolderScheduler):
    """Takes one model for another."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.folder.seed = "any"


class SharedScheduler(FolderScheduler):
    """Takes a request id for unique in the world."""

    everyone: ClassVar[dict[int, Known]] = {}

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.known = self.everyone


class PairWorker(FolderWorker):
    """Expects K and V."""

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        assert kv_cache_tensor.shape[2] == 2
        super().register_kv_caches(kv_cache_tensor)


class ExportingWorker(FolderWorker):
    """Cannot do without a handle of its pool."""

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        if self._llm_args.kv_cache_config.use_uvm:
            raise OSError("invalid argument")
        super().register_kv_caches(kv_cache_tensor)


class DraftyScheduler(FolderScheduler):
    """Copies a block as soon as its last token is scheduled, be it a draft."""

    def save(self, orders: Orders, known: Known, data: Any, num_loaded: int) -> None:
        before = known.num_saved
        computed = data.computed_position + num_loaded + data.num_scheduled_tokens
        for i in range(before, min(computed // self.size, len(known.pages))):
            orders.early.append(Work(known.pages[i], f"{os.getpid()}-{data.request_id}-{i}"))
        super().save(orders, known, data, num_loaded)
        keys = self.keys(known, len(known.tokens))
        orders.saves.clear()
        for i in range(before, known.num_saved):
            orders.names[f"{os.getpid()}-{data.request_id}-{i}"] = keys[i]


class DraftyWorker(FolderWorker):
    """Of ``DraftyScheduler``: what was copied first counts."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.copied: set[str] = set()

    def wait_for_save(self, stream: Any) -> None:
        orders = self._metadata
        assert isinstance(orders, Orders)
        for page, slot in orders.early:
            if slot not in self.copied:
                self.copied.add(slot)
                stream.enqueue(lambda page=page, slot=slot: self.keep(page, slot))
        for slot, key in orders.names.items():
            one, other = (self.folder.file(name, self.folder.rank) for name in (slot, key))
            stream.enqueue(lambda one=one, other=other: one.replace(other))
        super().wait_for_save(stream)


class WholeScheduler(FolderScheduler):
    """Loads the whole prompt where a part of it is there."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        known = self.known[request.request_id]
        if known.load:
            known.load = range(known.load.start, (len(known.tokens) - 1) // self.size)
        return answer


class WaitingWorker(FolderWorker):
    """Waits for the forward before it saves."""

    def wait_for_save(self, stream: Any) -> None:
        stream.synchronize(10.0)
        super().wait_for_save(stream)


class ResetScheduler(FolderScheduler):
    """Expects a request that is reset to be gone."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.gone: set[int] = set()

    def request_reset(self, request: Any) -> None:
        self.gone.add(request.request_id)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        assert request.request_id not in self.gone
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class FinalScheduler(ResetScheduler):
    """Expects a request that has finished to be gone."""

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        self.gone.add(request.request_id)
        return super().request_finished(request, cache_block_ids)


class EchoWorker(FolderWorker):
    """Reports twice on any rank but the leader's."""

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        saved, loaded = super().get_finished(finished_gen_req_ids, started_loading_req_ids)
        return (saved * 2 if self.folder.rank else saved), loaded


class DividingWorker(FolderWorker):
    """Divides heads by ranks."""

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        heads = max(1, kv_cache_tensor.shape[3] // 256)
        assert heads // self.folder.ranks * self.folder.ranks == heads
        super().register_kv_caches(kv_cache_tensor)


class OwnScheduler(FolderScheduler):
    """Looks at the leader's own pages alone."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.folder.ranks = 1


class DegreeScheduler(OwnScheduler):
    """Takes the pages of a whole engine for its own."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.folder.seed = "any"


class FlippingWorker(FolderWorker):
    """Loads one bit wrongly."""

    def fill(self, page: int, data: bytes) -> None:
        super().fill(page, bytes([data[0], data[1], data[2] ^ 0x40]) + data[3:])

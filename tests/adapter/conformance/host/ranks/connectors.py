"""Connectors of few lines for jobs: they offer nothing and keep pages for saves.

Lives in the ranks' processes; each rank's worker reports what it was told.
"""

from __future__ import annotations

from typing import Any

from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker, mpi_rank


class RankScheduler(KvCacheConnectorScheduler):
    """Offers nothing and says in the metadata how often it built some."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.rank = mpi_rank()
        self.num_built = 0

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> object:
        self.num_built += 1
        return self.rank, self.num_built

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        return True


class RankWorker(KvCacheConnectorWorker):
    """Reports a finished id ``rank`` iterations after it was announced."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.rank = mpi_rank()
        self.built_by: set[int] = set()
        self._late: list[list[int]] = [[] for _ in range(self.rank)]
        self.num_saved = 0

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        pass

    def start_load_kv(self, stream: Any) -> None:
        metadata: Any = self.get_connector_meta()
        self.built_by.add(metadata[0])

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        pass

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        pass

    def wait_for_save(self, stream: Any) -> None:
        pass

    def get_finished(self, finished: list[int], started: list[int]) -> tuple[list[int], list[int]]:
        self._late.append(list(finished))
        saved = self._late.pop(0)
        self.num_saved += len(saved)
        return saved, list(started)

    def counters(self) -> dict[str, int]:
        return {"saved": self.num_saved, "builders": sum(1 << rank for rank in self.built_by)}


class FailingWorker(RankWorker):
    """Rank 1's loads raise."""

    def start_load_kv(self, stream: Any) -> None:
        if self.rank == 1:
            raise RuntimeError("rank 1 cannot load")


class UnregisteredWorker(RankWorker):
    """Rank 1 does not come up."""

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        if self.rank == 1:
            raise RuntimeError("rank 1 has no pool")

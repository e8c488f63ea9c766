"""Our own connector, broken in one place each: for rules that need layer groups, or a server.

``Kvkeep`` is the sound one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from adapter.connector import KvkeepConnectorScheduler, KvkeepConnectorWorker
from adapter.metadata import SaveNames


class KvkeepScheduler(KvkeepConnectorScheduler):
    """As it is."""


class KvkeepWorker(KvkeepConnectorWorker):
    """As it is."""


class StrayScheduler(KvkeepScheduler):
    """Takes -1 for the last page."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        if self._running is None:
            return metadata
        loads = []
        for order in metadata.loads:
            pages = order.pages.copy()
            for group, of in enumerate(self._running.geometry.groups):
                pages[group][pages[group] < 0] = of.num_pages - 1
            loads.append(replace(order, pages=pages))
        return replace(metadata, loads=tuple(loads))


class MixingScheduler(KvkeepScheduler):
    """Loads every group into the pages of the first."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        loads = tuple(
            replace(order, pages=np.where(order.pages < 0, -1, order.pages[:1]))
            for order in metadata.loads
        )
        return replace(metadata, loads=loads)


class GhostScheduler(KvkeepScheduler):
    """Stores another page of the request for a block that has left a window."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.ghosts: dict[int, list[int]] = {}

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        return replace(metadata, names=tuple(self.haunt(one) for one in metadata.names))

    def haunt(self, names: SaveNames) -> SaveNames:
        ghosts = self.ghosts.setdefault(names.request_id, names.pages.max(axis=1).tolist())
        pages = [
            np.where(row < 0, ghost, row) for row, ghost in zip(names.pages, ghosts, strict=True)
        ]
        return replace(names, pages=np.array(pages, dtype=np.int32))

    def request_finished_by_layer_group(
        self, request: Any, cache_block_ids: Sequence[Sequence[int]]
    ) -> bool:
        ghosts = self.ghosts.get(request.request_id, [-1] * len(cache_block_ids))
        tables = [
            [ghost if page < 0 else page for page in table]
            for table, ghost in zip(cache_block_ids, ghosts, strict=False)
        ]
        return super().request_finished_by_layer_group(request, tables)


class GhostWorker(KvkeepWorker):
    """Does not know that a window lets go of pages."""

    def bind_connector_meta(self, metadata: Any) -> None:
        if self._running is not None:
            ledger = self._running.saver._ledger
            ledger._reach = [
                reach and replace(reach, window_tokens=1 << 20) for reach in ledger._reach
            ]
        super().bind_connector_meta(metadata)


class WholeScheduler(KvkeepScheduler):
    """Loads all it offered, whatever was taken up."""

    def _allocated(self, request: Any, pages: Sequence[Sequence[int]]) -> None:
        if self._table is None:  # not registered yet: nothing is offered
            super()._allocated(request, pages)
            return
        with patch.object(self._table, "take_up"):  # fails, should it have another name one day
            super()._allocated(request, pages)


class StaleScheduler(KvkeepScheduler):
    """Answers for an id what it answered before."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.answers: dict[int, tuple[int, bool]] = {}

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if request.request_id not in self.answers:
            answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
            self.answers[request.request_id] = answer
        return self.answers[request.request_id]


class TwiceWorker(KvkeepWorker):
    """Reports each load again an iteration later."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.again: list[int] = []

    def get_finished(
        self, finished_gen_req_ids: Sequence[int], started_loading_req_ids: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        saved, loaded = super().get_finished(finished_gen_req_ids, started_loading_req_ids)
        again, self.again = self.again, loaded
        return saved, [*again, *loaded]


class EarlyWorker(KvkeepWorker):
    """Reports each load as soon as it is announced."""

    def start_load_kv(self, stream: Any) -> None: ...


class SingleWorker(KvkeepWorker):
    """Starts loads once in each iteration."""

    has_started = False

    def start_load_kv(self, stream: Any) -> None:
        if self.has_started:
            raise RuntimeError("loads were started twice")
        self.has_started = True
        super().start_load_kv(stream)

    def wait_for_save(self, stream: Any) -> None:
        self.has_started = False
        super().wait_for_save(stream)


class UnsetWorker(KvkeepWorker):
    """Sets the engine's device in none of its threads."""

    def _register(self, read: Any, cache: Any) -> None:
        with patch("adapter.engine.capture_device", lambda device: lambda: None):
            super()._register(read, cache)

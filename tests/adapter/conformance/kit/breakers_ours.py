"""Our own connector, broken in one place each: for rules that need layer groups, or a server.

``Kvkeep`` is the sound one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adapter.connector import KvkeepConnectorScheduler, KvkeepConnectorWorker


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
    """Stores something for blocks that have left a window."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        names = tuple(
            replace(
                one, pages=np.where(one.pages < 0, one.pages.max(axis=1, keepdims=True), one.pages)
            )
            for one in metadata.names
        )
        return replace(metadata, names=names)


class GhostWorker(KvkeepWorker):
    """Does not know that a window lets go of pages."""

    def bind_connector_meta(self, metadata: Any) -> None:
        if self._running is not None:
            ledger = self._running.saver._ledger
            ledger._reach = [1 << 20 if reach else 0 for reach in ledger._reach]
        super().bind_connector_meta(metadata)


class WholeScheduler(KvkeepScheduler):
    """Loads all it offered, whatever was taken up."""

    def _honour(self, request: Any, state: Any, table: Any) -> None: ...


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

"""An engine for measuring: large saves and loads of known pages, without a wait between hooks.

Its forwards compute nothing: pages hold one of a few patterns, written once, so that time goes to
what is measured and bytes can be compared afterwards all the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.adapter.hostlike import FakeRequest, Output, Report
from tests.gpu.ground import Ground
from tests.gpu.rig import DeviceRig, PoolKind

NUM_PATTERNS = 13
LIMIT_S = 60.0


@dataclass
class LoadTimes:
    """One load.

    Attributes:
        queued_s: how long ``start_load_kv`` took.
        done_s: from its call until the engine's stream was through.
        hooks_s: time of each hook, by name.
    """

    queued_s: float
    done_s: float
    hooks_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Saving:
    """A save under way.

    Attributes:
        request_id: of the request.
        chunks_before: chunks that had been saved before.
        is_held: whether the host keeps the request's pages until the save is settled.
    """

    request_id: int
    chunks_before: int
    is_held: bool


def long_prompt(num_tokens: int, seed: int) -> list[int]:
    """A prompt that no other seed begins like."""
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(0, 32_000, num_tokens)]


class BulkRig(DeviceRig):
    """One engine; the first half of its pages is for saving, the second for loading.

    One page more is for the last token of each prompt, which is never saved.

    Args:
        url: of the server.
        folder: for the model.
        ground: where its pages are.
        kind: of its pool.
        num_blocks: of the prompts that are saved and loaded.
    """

    def __init__(
        self, url: str, folder: Path, ground: Ground, kind: PoolKind, num_blocks: int
    ) -> None:
        rows = max(NUM_PATTERNS, min(2 * num_blocks, (64 << 20) // kind.page_bytes))
        pages = 2 * num_blocks
        super().__init__(url, folder, ground, kind, pages + 1, rows, load_mode="sync")
        self.spare = pages
        self.num_blocks = num_blocks
        rng = np.random.default_rng(5)
        self.patterns = rng.integers(0, 256, (NUM_PATTERNS, kind.page_bytes), dtype=np.uint8)
        self.num_rows = rows
        self.sources, self.targets = list(range(num_blocks)), list(range(num_blocks, pages))

    def register(self) -> BulkRig:
        """Prepares pages in no order, as a host's are after a while, and registers."""
        self.arrange(is_shuffled=True)
        super().register()
        return self

    def arrange(self, *, is_shuffled: bool) -> None:
        """Writes the patterns and clears what is loaded into.

        Args:
            is_shuffled: pages are used in no order; else in a row, where many copies become one.
        """
        for number, pages in enumerate((self.sources, self.targets)):
            pages.sort()
            if is_shuffled:
                np.random.default_rng(number).shuffle(pages)
        for pages, contents in (
            (self.sources, [self.patterns[at % NUM_PATTERNS] for at in range(self.num_blocks)]),
            (self.targets, [0] * self.num_blocks),
        ):
            for begin in range(0, len(pages), self.num_rows):
                end = begin + self.num_rows
                self.write(pages[begin:end], contents[begin:end])
                self.finish()

    def prompt(self, seed: int) -> list[int]:
        """As long as the pages for it, and one token."""
        return long_prompt(self.num_blocks * self.kind.block_tokens + 1, seed)

    @property
    def num_bytes(self) -> int:
        """Of one prompt's pages."""
        return self.num_blocks * self.page_bytes

    def save(self, prompt: list[int]) -> float:
        """Has the server take all pages of a prompt.

        Returns:
            Seconds from the forward's report until the engine may reuse the pages, all being saved.
        """
        begun_s = time.perf_counter()
        self._finish_save(self._begin_save(prompt), begun_s)
        return time.perf_counter() - begun_s

    def save_beside_load(self, prompt: list[int], held: list[int]) -> float:
        """Has one prompt's pages saved and another's loaded at once.

        Args:
            prompt: to save.
            held: saved before, to load.

        Returns:
            Seconds until both were done.
        """
        begun_s = time.perf_counter()
        saving = self._begin_save(prompt)
        self.load(held)
        self._finish_save(saving, begun_s)
        return time.perf_counter() - begun_s

    def _begin_save(self, prompt: list[int]) -> Saving:
        request = FakeRequest(self.next_id, list(prompt))
        self.next_id += 1
        self.query(request)
        pages = [*self.sources, self.spare]
        self.scheduler.update_state_after_alloc(request, pages)
        before = self.worker.counters().get("chunks_saved", 0)
        self.iterate(Output([Report(request.request_id, list(prompt), pages, 0, len(prompt))]))
        request.tokens.append(1)
        is_held = self.scheduler.request_finished(request, pages)
        return Saving(request.request_id, before, is_held)

    def _finish_save(self, saving: Saving, begun_s: float) -> None:
        if saving.is_held:
            self.collect((saving.request_id,))
            while saving.request_id not in self.saved:
                assert time.perf_counter() - begun_s < LIMIT_S, self.worker.counters()
                time.sleep(0.0005)  # a pace, not a wait: the loop ends by its condition
                self.iterate(Output())
        saved = self.worker.counters().get("chunks_saved", 0) - saving.chunks_before
        assert saved == self.num_blocks, f"{saved} of {self.num_blocks} pages were saved"

    def load(self, prompt: list[int]) -> LoadTimes:
        """Loads a saved prompt into the other half, as the host's iteration does."""
        request = FakeRequest(self.next_id, list(prompt))
        self.next_id += 1
        self.finish()
        hooks: dict[str, float] = {}

        def timed(name: str, function: Any, *arguments: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                hooks[name] = time.perf_counter() - begun_s

        offered, is_async = timed(
            "get_num_new_matched_tokens", self.scheduler.get_num_new_matched_tokens, request, 0
        )
        assert (offered, is_async) == (len(prompt) - 1, False), (offered, is_async)
        pages = [*self.targets, self.spare]
        timed("update_state_after_alloc", self.scheduler.update_state_after_alloc, request, pages)
        report = Report(request.request_id, list(prompt), pages, 0, 1)
        metadata = timed(
            "build_connector_meta", self.scheduler.build_connector_meta, Output([report])
        )
        timed("bind_connector_meta", self.worker.bind_connector_meta, metadata)
        begun_s = time.perf_counter()
        timed("start_load_kv", self.worker.start_load_kv, self.stream)
        queued_s = time.perf_counter() - begun_s
        self.finish()
        done_s = time.perf_counter() - begun_s
        timed("wait_for_save", self.worker.wait_for_save, self.stream)
        timed("get_finished", self.worker.get_finished, [], [])
        request.tokens.append(1)
        if timed("request_finished", self.scheduler.request_finished, request, pages):
            self.collect((request.request_id,))
            self.settle(request.request_id)
        return LoadTimes(queued_s, done_s, hooks)

    def num_wrong_pages(self) -> int:
        """Loaded pages that are not what was saved."""
        wrong = 0
        for begin in range(0, self.num_blocks, self.num_rows):
            numbers = np.arange(begin, min(begin + self.num_rows, self.num_blocks))
            rows = self.read([self.targets[at] for at in numbers])
            self.finish()
            wanted = self.patterns[numbers % NUM_PATTERNS]
            wrong += int((self.scratch[rows] != wanted).any(axis=1).sum())
        return wrong

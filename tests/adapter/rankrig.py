"""Several ranks of one engine without torch: the leader's rig and the other ranks' workers.

Each has pages, a link and a session of its own, as in processes of their own; metadata goes to all
of them pickled, and an id acts only when every rank returned it (host contract §5).
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adapter.pages import SharedPool
from adapter.trtllm_api import CONFORMANCE_RANK
from adapter.worker import KvkeepConnectorWorker
from tests.adapter.enginerig import SIZE, EngineRig, Stream, page_content
from tests.adapter.hostlike import Args, Output
from tests.adapter.test_identity import FakeTensor

SPLIT_SHAPE = (2, 2, 32)
"""One KV head of 8 elements on each rank, four tokens a block."""

LATENT_SHAPE = (2, 1, 64)
"""A latent of 16 elements, the same on each rank."""


class Follower:
    """A rank that is not the leader."""

    def __init__(self, rank: int, args: Args, num_pages: int, shape: tuple[int, int, int]) -> None:
        before = os.environ.get(CONFORMANCE_RANK)
        os.environ[CONFORMANCE_RANK] = str(rank)
        try:
            self.worker = KvkeepConnectorWorker(replace(args))
        finally:
            del os.environ[CONFORMANCE_RANK]
            if before is not None:
                os.environ[CONFORMANCE_RANK] = before
        self.pool = SharedPool.create(num_pages * int(np.prod(shape)) * 4)
        self.pages = self.pool.view.reshape(num_pages, -1)
        self.tensor = FakeTensor(self.pool.view.view(np.float32).reshape(num_pages, *shape))


class RankRig(EngineRig):
    """One engine of several ranks."""

    def __init__(
        self,
        url: str | None,
        model: Path,
        num_ranks: int,
        is_latent: bool = False,
        num_pages: int = 64,
    ) -> None:
        shape = LATENT_SHAPE if is_latent else SPLIT_SHAPE
        args = Args(tensor_parallel_size=num_ranks)
        super().__init__(url, model, num_pages, args, shape)
        self.is_latent = is_latent
        self.followers = [Follower(r, self.args, num_pages, shape) for r in range(1, num_ranks)]
        self.streams: dict[int, Stream] = {}
        self.before_rank: Callable[[int], None] = lambda rank: None
        self._returned: dict[tuple[str, int], set[int]] = {}

    @property
    def workers(self) -> list[KvkeepConnectorWorker]:
        return [self.worker, *(follower.worker for follower in self.followers)]

    @property
    def rank_pages(self) -> list[Any]:
        return [self.pages, *(follower.pages for follower in self.followers)]

    def register(self) -> RankRig:
        """Registers all ranks; the others join in the first iterations, as the card comes."""
        for follower in self.followers:
            follower.worker.register_kv_caches(follower.tensor)
        super().register()
        self.join()
        return self

    def join(self, limit_s: float = 10.0) -> None:
        """Empty iterations until every rank is registered."""
        end_s = time.monotonic() + limit_s
        while not all(w.link is not None and w.link.joined is not None for w in self.workers):
            assert time.monotonic() < end_s, [w.counters() for w in self.workers]
            self.iterate(Output())
            time.sleep(0.005)  # a pace, not a wait
        self.scheduler.wait_for_initialization()  # what is held is found once all have mapped it

    def iterate(
        self, output: Output, finished: tuple[int, ...] = (), *, forward: Any = None
    ) -> None:
        metadata = pickle.dumps(self.timed("build", self.scheduler.build_connector_meta, output))
        for rank, worker in enumerate(self.workers):
            self.before_rank(rank)
            self.timed("bind", worker.bind_connector_meta, pickle.loads(metadata))  # noqa: S301
            self.timed("load", worker.start_load_kv, self.streams.get(rank, self.stream))
        for rank, worker in enumerate(self.workers):
            self.launch(worker, forward if rank == 0 else None)
            self.timed("wait_for_save", worker.wait_for_save, self.streams.get(rank, self.stream))
        self.collect(finished)

    def collect(self, finished: tuple[int, ...] = ()) -> None:
        started, self.parked = self.parked, []
        self.loading.update(started)
        for rank, worker in enumerate(self.workers):
            saved, loaded = self.timed(
                "get_finished", worker.get_finished, list(finished), list(started)
            )
            for kind, numbers in (("saved", saved), ("loaded", loaded)):
                for number in numbers:
                    ranks = self._returned.setdefault((kind, number), set())
                    assert rank not in ranks, f"rank {rank} returned {number} twice"
                    ranks.add(rank)
        whole = [what for what, ranks in self._returned.items() if len(ranks) == len(self.workers)]
        for kind, number in whole:
            del self._returned[kind, number]
            if kind == "saved":
                self.saved.append(number)
            else:
                self.loading.remove(number)

    def content(self, tokens: list[int], rank: int) -> Any:
        """What the page of the last block of ``tokens`` must hold on a rank."""
        return page_content(tokens if self.is_latent else [*tokens, -1 - rank], self.page_bytes)

    def wipe(self, pages: list[int]) -> None:
        for rank_pages in self.rank_pages:
            rank_pages[pages] = 0xFF

    def fill(self, tokens: list[int], pages: list[int], first: int) -> None:
        for rank, rank_pages in enumerate(self.rank_pages):
            for block in range(first, len(tokens) // SIZE):
                rank_pages[pages[block]] = self.content(tokens[: (block + 1) * SIZE], rank)

    def check(self, tokens: list[int], pages: list[int], stop: int) -> None:
        for rank, rank_pages in enumerate(self.rank_pages):
            for block in range(stop):
                expected = self.content(tokens[: (block + 1) * SIZE], rank)
                assert np.array_equal(rank_pages[pages[block]], expected), (rank, block)
            for page in pages[stop:]:
                assert (rank_pages[page] == 0xFF).all(), rank

    def close(self) -> None:
        for worker in reversed(self.workers):
            worker.shutdown()

"""Engines of several ranks with kvkeep, and what a server must hold after them. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.engines import AttentionDpEngine, TensorParallelEngine
from server.asking import stats
from tests.e2e.torchhost import BLOCK, llm_args, prompt
from tests.wire.process import ServerProcess, wait_until

WAIT_S = 60.0
NUM_BLOCKS = 64
POINTS = "tests.e2e.rankpoints:install"
TRANSIENT = ("leases", "pinned_slots", "stores", "slots_reserved", "copies_in_flight")


@contextmanager
def split(
    model: Path, url: str | None, size: int, *, joined: bool = True, **more: Any
) -> Iterator[TensorParallelEngine]:
    """A tensor-parallel engine; with a server, once all its ranks are registered there."""
    args = more.pop("args", {})
    if url is None:  # what others are compared with, on whatever device those are
        more["options"] = replace(more.get("options") or HostOptions(), device="host")
    with TensorParallelEngine(
        llm_args(model, url, **args), NUM_BLOCKS, size, plugins=[POINTS], **more
    ) as engine:
        if url is not None and joined:
            await_registered(engine)
        yield engine


@contextmanager
def replicas(
    model: Path, url: str | None, size: int = 2, **more: Any
) -> Iterator[AttentionDpEngine]:
    """An attention-DP engine, once all its ranks are registered."""
    args = more.pop("args", {})
    with AttentionDpEngine(
        llm_args(model, url, **args), NUM_BLOCKS, size, plugins=[POINTS], **more
    ) as engine:
        if url is not None:
            await_registered(engine)
        yield engine


def await_registered(engine: TensorParallelEngine | AttentionDpEngine) -> None:
    """Short requests until every rank is registered: followers join as iterations go round."""
    deadline_s = time.monotonic() + 20
    while not all(
        engine.stats(rank).connector.get("extents_mapped", 0)
        + engine.stats(rank).connector.get("registrations", 0)
        for rank in range(engine.size)
    ):
        assert time.monotonic() < deadline_s, [
            engine.stats(rank).connector for rank in range(engine.size)
        ]
        engine.submit(prompt(3), 1).result(WAIT_S)
    # Extents are mapped in the background; a first hit says that all readers have them.
    text = prompt(BLOCK + 1, seed=999)
    while True:
        engine.submit(text, 1).result(WAIT_S)
        engine.forget_reuse(WAIT_S)
        if engine.submit(text, 1).result(WAIT_S).num_loaded_tokens:
            engine.forget_reuse(WAIT_S)
            return
        assert time.monotonic() < deadline_s, engine.job.log()


def gauges(server: ServerProcess) -> dict[str, int]:
    return stats(server.side_path, 5.0)


def check_nothing_left(server: ServerProcess, sessions: int, limit_s: float = 10.0) -> None:
    """No lease, pin, open save or session but those of engines that live."""
    now: dict[str, int] = {}

    def clean() -> bool:
        now.update(gauges(server))
        return now["sessions"] == sessions and not any(now[name] for name in TRANSIENT)

    assert wait_until(clean, limit_s, 0.05), {n: now[n] for n in (*TRANSIENT, "sessions")}


def check_pages_back(engine: TensorParallelEngine | AttentionDpEngine) -> None:
    """All pages are available on every rank, none is held for a save."""
    for rank in range(engine.size):
        host = engine.stats(rank).host
        assert (host.num_available_blocks, host.num_saving_pages) == (NUM_BLOCKS, 0), rank
        assert engine.stats(rank).connector.get("held_pages", 0) == 0


class Survivors(dict[int, TensorParallelEngine]):
    """Engines by degree, made when asked for, that must not notice what happens to others."""

    def __init__(self, make: Callable[[int], TensorParallelEngine]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> TensorParallelEngine:
        self[size] = self._make(size)
        return self[size]

    @property
    def num_ranks(self) -> int:
        """How many sessions they hold on their server."""
        return sum(self)


Reference = Callable[[list[int], int], Any]

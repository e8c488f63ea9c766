"""Step ``torture``: an engine whose stream is late, whose pages are reused at once, that cancels.

A host in miniature on one pool that is too small: kernels are held up for random times, pages go to
the next request as soon as the host may give them, whose forward overwrites them at once (by work
on the engine's stream), requests vanish without a callback. Every page that was loaded is read
behind the load and compared; at the end, another engine loads all that the server has and compares
that.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from protocol.device.interface import MemoryKind
from tests.adapter.enginerig import SIZE, launched
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.gpu.ground import Ground
from tests.gpu.rig import POISON, DeviceRig, PoolKind
from tests.slow.figure import Figure

NUM_PAGES = 96
NUM_PROMPTS = 24
LONGEST = 60
CANCEL_CHANCE = 0.15
LATE_CHANCE = 0.5
LATEST_S = 0.008
FARTHEST = 8
"""Requests that the stream may lag behind the host."""
LIMIT_S = 60.0


@dataclass
class Look:
    """Pages that were read behind a load, to be compared once the stream is there."""

    mark: Any
    rows: np.ndarray[Any, Any]
    tokens: list[int]
    num_blocks: int


def reached(mark: Any) -> None:
    """Waits for a point of the stream."""
    end_s = time.monotonic() + LIMIT_S
    while not mark.query():
        assert time.monotonic() < end_s, "the stream never gets there"
        time.sleep(0.0002)  # a pace, not a wait: the loop ends by its condition


class TortureRig(DeviceRig):
    """A rig with a host's free list, whose forwards nobody waits for."""

    def __init__(self, *arguments: Any, seed: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.rng = random.Random(seed)
        self.free = list(range(len(self.pages)))
        self.held: dict[int, list[int]] = {}
        self.looks: list[Look] = []
        self.marks: deque[Any] = deque()
        self.counts = dict.fromkeys(("requests", "cancelled", "pages_compared", "wrong_pages"), 0)

    def hand_out(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]  # last in, first out, as the host does

    def wipe(self, pages: list[int]) -> None:
        """Not when pages are handed out: a forward is the first that may write them."""

    def collect(self, finished: tuple[int, ...] = ()) -> None:
        before = len(self.saved)
        super().collect(finished)
        for number in self.saved[before:]:
            self.free += self.held.pop(number)

    def settle_all(self) -> None:
        """Empty iterations until no page is held any more."""
        end_s = time.monotonic() + LIMIT_S
        while self.held:
            assert time.monotonic() < end_s, self.worker.counters()
            self.iterate(Output())
            time.sleep(0.001)  # a pace, not a wait: the loop ends by its condition

    def late(self) -> None:
        """Now and then the stream is held up by a kernel."""
        if self.rng.random() < LATE_CHANCE:
            self.ground.delay(self.main, self.rng.random() * LATEST_S)

    def one(self, prompt: list[int]) -> None:
        """One request, from query to its end."""
        need = -(-len(prompt) // SIZE)
        end_s = time.monotonic() + LIMIT_S
        while len(self.free) < need:
            assert time.monotonic() < end_s, self.worker.counters()
            self.iterate(Output())
            time.sleep(0.0005)  # a pace, not a wait: the loop ends by its condition
        self.late()
        request, offered, pages = self.begin(prompt)
        self.counts["requests"] += 1
        cursor = offered if self.await_load(request) else 0
        report = Report(request.request_id, list(prompt), pages, cursor, len(prompt) - offered)
        self.iterate(Output([report]), forward=lambda: self.forward(prompt, pages, offered // SIZE))
        self.end(request, pages)
        self.marks.append(self.main.record_event())
        if len(self.marks) > FARTHEST:  # no farther ahead, or page-locked rows would be used twice
            reached(self.marks.popleft())
        self.compare(len(self.looks) - FARTHEST)

    def forward(self, prompt: list[int], pages: list[int], loaded: int) -> None:
        """Reads what was loaded, then computes the rest; nobody waits for it."""
        self.late()
        if loaded:
            rows = self.read(pages[:loaded])
            self.looks.append(Look(self.main.record_event(), rows, list(prompt), loaded))
        self.write(pages[loaded:], [POISON] * (len(pages) - loaded))
        self.late()
        self.fill(prompt, pages, loaded)
        self.late()

    def end(self, request: FakeRequest, pages: list[int]) -> None:
        """Finished and perhaps held, or cancelled without a word."""
        if self.rng.random() < CANCEL_CHANCE:
            self.counts["cancelled"] += 1
            self.free += pages
            return
        request.tokens.append(1)
        if self.scheduler.request_finished(request, pages):
            self.held[request.request_id] = pages
            self.collect((request.request_id,))
        else:
            self.free += pages

    def compare(self, count: int) -> None:
        """Compares the oldest looks, waiting for the stream where it is not there yet."""
        for look in self.looks[: max(count, 0)]:
            reached(look.mark)
            wanted = self.expected(look.tokens, look.num_blocks)
            for row, content in zip(self.scratch[look.rows], wanted, strict=True):
                self.counts["wrong_pages"] += not np.array_equal(row, content)
                self.counts["pages_compared"] += 1
        del self.looks[: max(count, 0)]


def prompts(rng: random.Random) -> list[list[int]]:
    """A tree of prompts: most begin as another does."""
    made = [tokens(LONGEST, seed=rng.randrange(1 << 30))]
    while len(made) < NUM_PROMPTS:
        stem = rng.choice(made)[: rng.randrange(0, LONGEST)]
        length = rng.randrange(SIZE + 1, LONGEST)
        made.append((stem + tokens(length, seed=rng.randrange(1 << 30)))[:LONGEST])
    return [prompt for prompt in made if len(prompt) > SIZE]


def play(
    ground: Ground,
    folder: Path,
    url: str,
    kind: PoolKind,
    seed: int,
    num_requests: int,
    make: type[TortureRig] = TortureRig,
) -> dict[str, int]:
    """Runs requests on one engine, then reads everything back with another.

    Args:
        ground: where pages are.
        folder: for the model.
        url: of the server.
        kind: of the pools.
        seed: of everything that is drawn.
        num_requests: of the first engine.
        make: the first engine; a test plants mistakes in it.

    Returns:
        Counts; ``wrong_pages`` must be 0.
    """
    rng = random.Random(seed)
    chosen = prompts(rng)
    rig = make(url, folder, ground, kind, num_pages=NUM_PAGES, num_rows=1024, seed=seed)
    try:
        rig.write(list(rig.pages), [POISON] * NUM_PAGES)
        rig.register()
        for _ in range(num_requests):
            rig.one(rng.choice(chosen))
        rig.compare(len(rig.looks))
        rig.check_way()
        counts = dict(rig.counts)
    finally:
        rig.close()
    again = TortureRig(url, folder, ground, kind, num_pages=NUM_PAGES, num_rows=1024, seed=seed)
    try:
        again.register()
        for prompt in chosen:
            again.one(prompt)
        again.compare(len(again.looks))
        for name in ("pages_compared", "wrong_pages"):
            counts[name] += again.counts[name]
        again.settle_all()
        again.check_nothing_leased()
    finally:
        again.close()
    return counts


def measure(ground: Ground, is_quick: bool, seed: int = 1) -> dict[str, Figure]:
    """Tortures a pool that is shared by handle and one that goes through the ring.

    Raises:
        AssertionError: nothing was loaded, so nothing was shown.
    """
    figures: dict[str, Figure] = {"seed": Figure(seed)}
    num_requests = 60 if is_quick else 400
    for name, memory in (("handle", MemoryKind.DEVICE), ("ring", MemoryKind.VIRTUAL)):
        with TemporaryDirectory(prefix="kvk-") as place, launched("--l1-size", "64M") as server:
            folder, kind = Path(place) / "m", PoolKind(memory=memory)
            counts = play(ground, folder, server.url, kind, seed, num_requests)
        assert counts["pages_compared"] > num_requests // 4, counts
        for what, count in counts.items():
            judged = what == "wrong_pages"
            target = "0" if judged else ""
            figures[f"{name}: {what}"] = Figure(count, target, count == 0 if judged else None)
    return figures

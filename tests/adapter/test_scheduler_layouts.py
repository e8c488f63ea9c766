"""Layouts of the second cache manager at random, through all hooks and a real server, to the byte.

Groups, regions, strides, gaps and page numbers are random; so is which groups take their pages from
one pool. Whatever is not a loaded page must stay as it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.pages import SharedPool
from tests.adapter.enginerig import SIZE, EngineRig, Outcome, launched, page_content, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.adapter.test_layouts import Group, Layout, Region
from tests.wire.process import ServerProcess

PROMPT = tokens(22)
MEMORY_BYTES = 1 << 17


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "100")


@dataclass
class Pool:
    """Where some groups' pages lie: (offset, size, stride) of each region."""

    places: list[tuple[int, int, int]]
    num_slots: int
    free: list[int]


def make_pools(rng: random.Random, count: int) -> list[Pool]:
    """Regions one behind the other, or side by side in each slot, with gaps."""
    pools, at = [], rng.randrange(1, 999)
    for _ in range(count):
        num_slots = rng.randint(24, 40)
        sizes = [rng.randint(1, 160) for _ in range(rng.randint(1, 3))]
        places = []
        if rng.random() < 0.5:
            stride = sum(sizes) + rng.randrange(3)
            for size in sizes:
                places.append((at, size, stride))
                at += size
            at += stride * num_slots
        else:
            for size in sizes:
                stride = size + rng.choice((0, 1, 40))
                places.append((at, size, stride))
                at += stride * num_slots + rng.randrange(50)
        rng.shuffle(places)
        free = list(range(num_slots))
        rng.shuffle(free)
        pools.append(Pool(places, num_slots, free))
    assert at < MEMORY_BYTES
    return pools


class LayoutRig(EngineRig):
    """An engine whose groups lie as a seed says."""

    def __init__(self, url: str, model: Path, seed: int, is_private: bool) -> None:
        super().__init__(url, model)
        rng = random.Random(seed)
        self.fires_hooks = False
        self.own = np.zeros(MEMORY_BYTES, np.uint8)
        self.pool = SharedPool.create(MEMORY_BYTES)
        self.memory = self.own if is_private else self.pool.view
        self.memory[:] = 0xA5
        num_groups = rng.randint(2, 4)
        pools = make_pools(rng, rng.randint(1, num_groups))
        self.pool_of = [pools[at] if at < len(pools) else rng.choice(pools) for at in
                        range(num_groups)]  # fmt: skip
        windows = [None, *(rng.choice((None, 0, 1000)) for _ in range(num_groups - 1))]
        base = int(self.memory.ctypes.data)
        groups = []
        for number, (pool, window) in enumerate(zip(self.pool_of, windows, strict=True)):
            regions = [
                Region(base + offset, size, stride, pool.num_slots)
                for offset, size, stride in pool.places
            ]
            groups.append(Group(number, [number], window, regions))
        rng.shuffle(groups)
        self.layout = Layout(SIZE, groups)

    def register(self) -> LayoutRig:
        self.worker.register_kv_cache_layout(self.layout)
        self.scheduler.wait_for_initialization()
        return self

    def take(self, num_blocks: int) -> list[list[int]]:
        """Pages of each group: no page is two groups' at once."""
        return [[pool.free.pop() for _ in range(num_blocks)] for pool in self.pool_of]

    def give_back(self, tables: list[list[int]]) -> None:
        for pool, pages in zip(self.pool_of, tables, strict=True):
            pool.free += pages

    def parts(self, group: int, page: int) -> Iterator[Any]:
        """A page's bytes, region by region."""
        for offset, size, stride in self.pool_of[group].places:
            yield self.memory[offset + stride * page :][:size]

    def write(self, tables: list[list[int]], first: int, stop: int) -> None:
        """What a forward, or a load, leaves in the pages of some blocks."""
        for group, pages in enumerate(tables):
            size = sum(size for _, size, _ in self.pool_of[group].places)
            for block in range(first, stop):
                left = page_content([group, *PROMPT[: (block + 1) * SIZE]], size)
                for part in self.parts(group, pages[block]):
                    part[:], left = left[: len(part)], left[len(part) :]

    def play(self, honoured: int | None = None) -> Outcome:
        """The prompt from query to finish; the host takes up as much of an offer as is said."""
        request: Any = FakeRequest(self.next_id, list(PROMPT))
        self.next_id += 1
        offered = self.query(request)
        taken = offered if honoured is None else min(honoured, offered)
        request.py_num_connector_matched_tokens = taken
        tables = self.take(-(-len(PROMPT) // SIZE))
        self.scheduler.update_state_after_alloc_by_layer_group(request, tables)
        before = self.memory.copy()

        def forward() -> None:
            found = self.memory.copy()
            self.memory[:] = before
            self.write(tables, 0, -(-taken // SIZE))
            assert np.array_equal(found, self.memory)
            self.write(tables, taken // SIZE, len(PROMPT) // SIZE)

        number = request.request_id
        report = Report(number, list(PROMPT), [], 0, len(PROMPT) - taken, tables)
        self.iterate(Output([report]), forward=forward)
        request.tokens.append(1)
        kept = self.scheduler.request_finished_by_layer_group(request, tables)
        self.collect((number,) if kept else ())
        if kept:
            self.settle(number)
        self.give_back(tables)
        return Outcome(offered, kept, [])


@pytest.mark.parametrize("is_private", [False, True], ids=["mapped", "ring"])
@pytest.mark.parametrize("seed", range(8))
def test_random_layouts_are_saved_and_loaded_to_the_byte(
    server: ServerProcess, tmp_path: Path, seed: int, is_private: bool
) -> None:
    rig = LayoutRig(server.url, write_model(tmp_path / "m"), seed, is_private).register()
    try:
        assert rig.play().offered == 0
        assert rig.play().offered == 20
        for honoured in (8, 5, 0, 1000):  # 5: inside a block, which is loaded, and computed on
            assert rig.play(honoured).offered == 20
        rig.check_nothing_leased()
    finally:
        rig.close()


@pytest.mark.parametrize(("is_chunked", "expected"), [(None, True), (True, True), (False, False)])
def test_where_prompts_may_come_in_parts_each_part_of_an_offer_must_be_loadable(
    server: ServerProcess, tmp_path: Path, is_chunked: bool | None, expected: bool
) -> None:
    rig = LayoutRig(server.url, write_model(tmp_path / "m"), 1, False)
    args: Any = rig.args
    if is_chunked is not None:
        args.enable_chunked_prefill = is_chunked
    try:
        rig.register()
        assert rig.scheduler._desk is not None
        assert rig.scheduler._desk._is_divisible is expected
    finally:
        rig.close()


def test_pages_that_left_a_window_are_not_counted_as_held(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = LayoutRig(server.url, write_model(tmp_path / "m"), 1, False).register()
    try:
        request: Any = FakeRequest(1, list(PROMPT))
        assert rig.query(request) == 0
        tables = rig.take(6)
        rig.scheduler.update_state_after_alloc_by_layer_group(request, tables)
        rig.iterate(Output([Report(1, list(PROMPT), [], 0, len(PROMPT), tables)]))
        request.tokens.append(1)
        tables[-1][:2] = [-1, -1]  # in place: the host took two pages back
        assert rig.scheduler.request_finished_by_layer_group(request, tables)
        assert rig.worker.counters()["held_pages"] == 6 * len(tables) - 2
        rig.collect((1,))
        rig.settle(1)
    finally:
        rig.close()

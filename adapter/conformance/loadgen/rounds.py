"""Rounds of stores, retrieves and plain copies of the same pages, and the first pass over an arena.

Purpose: interleave the methods, in an order drawn anew each round, so that drift of the machine
hits all of them alike; check every page that came back. Must not know: targets, other processes.
Runs in: the load generator's main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from adapter.conformance.loadgen import memcpy
from adapter.conformance.loadgen.cpu import Meter
from adapter.conformance.loadgen.engine import Engine, LoadgenError, Prompt
from adapter.conformance.loadgen.orders import Fill, Rounds
from adapter.conformance.loadgen.stamps import Stamps
from adapter.conformance.loadgen.transfers import Leased, Reader, store_s, wait_mapped
from protocol.ids import ExtentId

Progress = Callable[[int, int], None]


def run_rounds(engine: Engine, reader: Reader, order: Rounds, progress: Progress) -> dict[str, Any]:
    """Carries out a ``Rounds`` order.

    Args:
        engine: registered, with a scratch file.
        reader: of this engine.
        order: how many of what.
        progress: told after each round.

    Returns:
        ``seconds`` by method, one per round; ``num_bytes`` of a round; ``loop_share``.

    Raises:
        LoadgenError: something failed, or bytes came back that were not stored.
    """
    random = np.random.default_rng(order.seed)
    times: dict[str, list[float]] = {}
    # The first round warms what is still cold and is not counted.
    _round(engine, order, reader, random, {})
    loop = Meter(order.pid, order.pid)
    for number in range(order.rounds):
        _round(engine, order, reader, random, times)
        progress(number + 1, order.rounds)
    share = loop.read()
    num_bytes = order.num_requests * order.pages_per_request * engine.page_bytes
    return {"seconds": times, "num_bytes": num_bytes, "loop_share": share}


def _round(
    engine: Engine,
    order: Rounds,
    reader: Reader,
    random: np.random.Generator,
    times: dict[str, list[float]],
) -> None:
    prompts = engine.prompts(order.num_requests, order.pages_per_request, random)
    stamps = Stamps.put(engine.pool.view, engine.page_bytes, random)
    route = _to_scratch(engine, prompts)
    _timed(
        times,
        random,
        {
            "store": lambda: store_s(engine, prompts),
            **{f"store_{name}": _bound(copy, route) for name, copy in memcpy.METHODS.items()},
        },
    )
    where = wait_mapped(engine, prompts)
    stamps.wipe()
    with _from_arena(engine, where) as route:
        _timed(
            times,
            random,
            {
                "retrieve": lambda: reader.retrieve_s(prompts),
                **{f"retrieve_{n}": _bound(copy, route) for n, copy in memcpy.METHODS.items()},
            },
        )
    _check(stamps, prompts)
    engine.clear()


def _bound(copy: Callable[[memcpy.Route], float], route: memcpy.Route) -> Callable[[], float]:
    return lambda: copy(route)


def _timed(
    times: dict[str, list[float]],
    random: np.random.Generator,
    methods: dict[str, Callable[[], float]],
) -> None:
    names = list(methods)
    for at in random.permutation(len(names)):
        times.setdefault(names[at], []).append(methods[names[at]]())


def _to_scratch(engine: Engine, prompts: Sequence[Prompt]) -> memcpy.Route:
    """The pages of a round on their way to a file of the arena's kind."""
    pages = np.concatenate([prompt.pages for prompt in prompts]).tolist()
    targets = [number % engine.num_pages for number in range(len(pages))]
    return memcpy.Route(
        memcpy.pages_of(engine.pool.view, engine.page_bytes, pages),
        memcpy.pages_of(engine.scratch, engine.page_bytes, targets),
    )


@contextmanager
def _from_arena(engine: Engine, where: Sequence[Leased]) -> Iterator[memcpy.Route]:
    """The slots of a round on their way into the pages they came from."""
    ids = {ExtentId(int(number)) for one in where for number in one.slots["extent"]}
    with engine.link.extents.hold(engine.joined.epoch, ids) as extents:
        sources, targets = [], []
        for one in where:
            for slot, page in zip(one.slots, one.prompt.pages.tolist(), strict=True):
                extent = extents[int(slot["extent"])]
                begin = extent.geometry.slot_offset_bytes(int(slot["slot"]))
                sources.append(extent.view[begin : begin + engine.page_bytes])
                targets += memcpy.pages_of(engine.pool.view, engine.page_bytes, [page])
        route = memcpy.Route(sources, targets)
        yield route
        sources.clear()


def _check(stamps: Stamps, prompts: Sequence[Prompt]) -> None:
    pages = np.concatenate([prompt.pages for prompt in prompts])
    wrong = stamps.wrong(pages)
    if wrong:
        raise LoadgenError(f"{wrong} of {pages.size} pages came back with other bytes")


def run_fill(engine: Engine, reader: Reader, order: Fill, progress: Progress) -> dict[str, Any]:
    """Carries out a ``Fill`` order: each slot is written, and read, for the first time.

    Args:
        engine: registered a moment ago.
        reader: of this engine.
        order: how much.
        progress: told after each request.

    Returns:
        ``seconds`` by method, one per request; ``num_bytes`` of a request; ``fill_s``, all stores
        together; ``loop_share``.

    Raises:
        LoadgenError: something failed, or bytes came back that were not stored.
    """
    random = np.random.default_rng(order.seed)
    stamps = Stamps.put(engine.pool.view, engine.page_bytes, random)
    prompts = engine.prompts(order.num_requests, order.pages_per_request, random)
    times: dict[str, list[float]] = {}
    loop = Meter(order.pid, order.pid)
    began = time.perf_counter()
    for number, prompt in enumerate(prompts):
        times.setdefault("store", []).append(store_s(engine, [prompt]))
        progress(number + 1, 2 * order.num_requests)
    fill_s = time.perf_counter() - began
    share = loop.read()
    for number, prompt in enumerate(prompts):
        _cold_copies(engine, prompt, Path(order.scratch_dir), times)
        _first_read(engine, reader, prompt, stamps, times)
        progress(order.num_requests + number + 1, 2 * order.num_requests)
    engine.clear()
    num_bytes = order.pages_per_request * engine.page_bytes
    return {"seconds": times, "num_bytes": num_bytes, "fill_s": fill_s, "loop_share": share}


def _cold_copies(
    engine: Engine, prompt: Prompt, directory: Path, times: dict[str, list[float]]
) -> None:
    """Plain copies into a new file each: allocated, as an extent is, and never touched."""
    sources = memcpy.pages_of(engine.pool.view, engine.page_bytes, prompt.pages.tolist())
    for name, copy in memcpy.METHODS.items():
        scratch = memcpy.scratch_file(directory, prompt.num_blocks * engine.page_bytes)
        targets = memcpy.pages_of(scratch, engine.page_bytes, range(prompt.num_blocks))
        times.setdefault(f"store_{name}", []).append(copy(memcpy.Route(sources, targets)))


def _first_read(
    engine: Engine,
    reader: Reader,
    prompt: Prompt,
    stamps: Stamps,
    times: dict[str, list[float]],
) -> None:
    """The load first, the plain copies after it: they find the caches and page tables warmer."""
    where = wait_mapped(engine, [prompt])
    stamps.wipe()
    times.setdefault("retrieve", []).append(reader.retrieve_s([prompt]))
    _check(stamps, [prompt])
    with _from_arena(engine, where) as route:
        for name, copy in memcpy.METHODS.items():
            times.setdefault(f"retrieve_{name}", []).append(copy(route))
    stamps.renew()

"""Step ``rates``: bandwidth each way, beside page-locked memcpy of the same bytes, idle and busy.

Saves are timed as the engine sees them: from the forward's report until it may reuse the pages, the
copy into the arena and all messages included. Loads from ``start_load_kv`` until the engine's
stream is through. The plain copy is measured before and after; the best of each counts. A save and
a load at once are timed until both are done, beside the time that they take one after the other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.device.interface import Direction, batch_of
from tests.adapter.enginerig import launched
from tests.gpu.bulk import BulkRig
from tests.gpu.ground import Ground, finish, is_large
from tests.gpu.product import Products
from tests.gpu.rig import PoolKind
from tests.slow.figure import Figure

GIB = 1 << 30
PAGES = {"4 MiB": (4 << 20, 0.9), "256 KiB": (256 << 10, 0.7)}
"""Bytes of a page, and the share of plain memcpy that is wanted."""
PLAIN_BYTES = 256 << 20
MAX_SLOW_DOWN = 0.05
NUM_WARM = 3
"""Saves before anything is measured, and prompts that the arena has room for: from then on a save
takes the place of an older one, in memory that has been written before."""


def plain(ground: Ground, direction: Direction, num_bytes: int) -> float:
    """Copies bytes between page-locked and device memory in large pieces; bytes per second."""
    device = ground.device
    piece = min(PLAIN_BYTES, num_bytes)
    there, here = device.pinned_buffer(piece), device.allocate(piece)
    stream = device.create_stream()
    try:
        ends = (here.address, there.address)
        target, source = ends if direction is Direction.TO_DEVICE else ends[::-1]
        batch = batch_of([(target, source, piece)])
        best = 0.0
        for _ in range(3):
            begun_s = time.perf_counter()
            for _ in range(num_bytes // piece):
                device.copy(stream, batch, direction)
            finish(device, stream)
            taken_s = time.perf_counter() - begun_s
            best = max(best, num_bytes // piece * piece / taken_s)
        return best
    finally:
        there.close()
        here.close()


def beside(products: Products, work: Callable[[], float]) -> tuple[float, float]:
    """Does something while products run.

    Returns:
        What it returned, and products per second meanwhile.
    """
    products.start()
    try:
        products.rate(0.05)  # until it runs evenly
        before, begun_s = products.count()
        result = work()
        after, ended_s = products.count()
    finally:
        products.stop()
    return result, (after - before) / max(ended_s - begun_s, 1e-9)


@dataclass
class Measured:
    """One direction: bytes per second, idle and beside products, and products per second then."""

    idle: float
    busy: float
    products: float


def repeated(once: Callable[[], float], at_least_s: float) -> float:
    """The best of some rates: as many as fit into a time, one at least."""
    end_s, best = time.perf_counter() + at_least_s, 0.0
    while not best or time.perf_counter() < end_s:
        best = max(best, once())
    return best


def engine_rates(rig: BulkRig, products: Products, rounds: int) -> tuple[Measured, Measured]:
    """Saves and loads of one engine, whose server's arena is in use to the last extent."""
    numbers = itertools.count()

    def save() -> float:
        return rig.num_bytes / rig.save(rig.prompt(next(numbers)))

    def load() -> float:
        return rig.num_bytes / rig.load(last).done_s

    for _ in range(NUM_WARM):
        save()
    during_s = 0.2 * rounds
    rig.await_server()
    idle_save = max(save() for _ in range(rounds))
    busy_save, save_products = beside(products, lambda: repeated(save, during_s))
    last = rig.prompt(next(numbers))
    rig.save(last)
    rig.await_server()
    idle_load = max(load() for _ in range(rounds))
    wrong = rig.num_wrong_pages()
    assert wrong == 0, f"{wrong} pages were loaded with other bytes"
    busy_load, load_products = beside(products, lambda: repeated(load, during_s))
    return (
        Measured(idle_save, busy_save, save_products),
        Measured(idle_load, busy_load, load_products),
    )


def in_a_row(rig: BulkRig, rounds: int) -> tuple[float, float]:
    """Saves and loads pages that lie in a row, bytes per second: copies of neighbours become one.

    Raises:
        AssertionError: a byte was wrong.
    """
    rig.arrange(is_shuffled=False)
    prompts = [rig.prompt(10_000 + number) for number in range(rounds)]
    saved = max(rig.num_bytes / rig.save(prompt) for prompt in prompts)
    rig.await_server()
    loaded = max(rig.num_bytes / rig.load(prompts[-1]).done_s for _ in range(rounds))
    wrong = rig.num_wrong_pages()
    assert wrong == 0, f"{wrong} pages were loaded with other bytes"
    return saved, loaded


def at_once(rig: BulkRig, rounds: int) -> tuple[float, float]:
    """A save and a load beside each other, and one after the other; bytes per second of both.

    Raises:
        AssertionError: a byte was wrong.
    """
    last = rig.prompt(20_000)
    rig.save(last)
    rig.await_server()
    beside_s, apart_s = [], []
    for number in range(rounds):
        beside_s.append(rig.save_beside_load(rig.prompt(20_001 + 2 * number), last))
        rig.await_server()
        saved_s = rig.save(rig.prompt(20_002 + 2 * number))
        rig.await_server()
        apart_s.append(saved_s + rig.load(last).done_s)
    wrong = rig.num_wrong_pages()
    assert wrong == 0, f"{wrong} pages were loaded with other bytes"
    return 2 * rig.num_bytes / min(beside_s), 2 * rig.num_bytes / min(apart_s)


def one(
    ground: Ground, products: Products, name: str, num_bytes: int, rounds: int
) -> dict[str, Figure]:
    """Figures for one page size."""
    page_bytes, wanted = PAGES[name]
    kind = PoolKind(page_bytes=page_bytes, block_tokens=32)
    directions = {"save": Direction.TO_HOST, "load": Direction.TO_DEVICE}
    bases = {what: plain(ground, way, num_bytes) for what, way in directions.items()}
    size = f"{max(NUM_WARM * num_bytes, 64 << 20) >> 20}M"
    with TemporaryDirectory(prefix="kvk-") as place, launched("--l1-size", size) as server:
        folder, blocks = Path(place) / "m", num_bytes // page_bytes
        rig = BulkRig(server.url, folder, ground, kind, blocks).register()
        try:
            alone = beside(products, lambda: products.rate(0.2 * rounds))[1]
            saved, loaded = engine_rates(rig, products, rounds)
            rows = dict(zip(directions, in_a_row(rig, rounds), strict=True))
            beside_each_other, apart = at_once(rig, rounds)
            way = rig.check_way()
        finally:
            rig.close()
    figures: dict[str, Figure] = {f"pool of {name} pages shared by": Figure(way)}
    for what, rates in (("save", saved), ("load", loaded)):
        base = max(bases[what], plain(ground, directions[what], num_bytes))
        share, slowed = rates.idle / base, 1 - rates.products / alone
        title = f"{what}, {name} pages"
        figures[f"{title}, GiB/s"] = Figure(round(rates.idle / GIB, 2))
        figures[f"{title} in a row, GiB/s"] = Figure(round(rows[what] / GIB, 2))
        figures[f"{title}, plain memcpy GiB/s"] = Figure(round(base / GIB, 2))
        figures[f"{title}, share of memcpy"] = Figure(
            round(share, 3), f">= {wanted}", share >= wanted
        )
        figures[f"{title}, GiB/s beside a product"] = Figure(round(rates.busy / GIB, 2))
        figures[f"{title}, the product slows down by"] = Figure(
            round(slowed, 3), f"< {MAX_SLOW_DOWN}", slowed < MAX_SLOW_DOWN
        )
    both = f"save and load at once, {name} pages in a row"
    figures[f"{both}, GiB/s"] = Figure(round(beside_each_other / GIB, 2))
    figures[f"{both}, gain over one after the other"] = Figure(round(beside_each_other / apart, 2))
    return figures


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Measures both page sizes.

    Raises:
        AssertionError: a byte was wrong.
    """
    has_room = is_large(ground)
    num_bytes = (GIB if not is_quick else GIB // 4) if has_room else 16 << 20
    rounds = 3 if has_room and not is_quick else 1
    products = Products(ground)
    figures: dict[str, Figure] = {"bytes of each copy": Figure(num_bytes)}
    for name in PAGES:
        figures |= one(ground, products, name, num_bytes, rounds)
    return figures

"""What queueing a load on a device costs the executor's thread: our part of it, by the page.

    python -m tests.benchmarks.bench_enqueue [--json] [--rounds N]

A program, not a test: it judges nothing, since a busy machine would decide. The device takes every
copy and does nothing, so what the driver takes for it is not in the figures (``tests/gpu`` measures
both on a GPU). One order of 1,024 pages is a prompt of 32k tokens in blocks of 32.
"""

from __future__ import annotations

import json
import mmap
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final, cast

import click
import numpy as np

from adapter.deviceloads import DeviceLoads
from adapter.extents import ExtentTable, MappedExtent
from adapter.journal import Journal
from adapter.loader import LOGGER, Loader
from adapter.metadata import ConnectorMetadata, LoadOrder
from adapter.pagememory import GroupPages, LayerSlice, PageMemory, PagePart
from protocol.device.host import HostDevice
from protocol.device.interface import Batch, Device, Direction
from protocol.ids import ArenaId, Epoch, LeaseId
from protocol.layout import SLOT_DTYPE
from tests.adapter.hostlike import geometry
from tests.adapter.responder import ExtentFile, namespace
from tests.adapter.responder import geometry as cut

EPOCH: Final = Epoch(b"e" * 16)
PAGE: Final = 4096
NUM_SLOTS: Final = 4096
NUM_LAYERS: Final = 32
SIZES: Final = (64, 1024, 4096)


class IdleDevice(HostDevice):
    """Takes copies and does nothing."""

    def copy(self, stream: object, batch: Batch, direction: Direction) -> None:
        """Nothing."""


class Leases:
    """Extents, and nobody to give leases back to."""

    def __init__(self, table: ExtentTable) -> None:
        self.extents = table

    def release(self, lease: LeaseId) -> None:
        """Nothing."""


def order(number: int, num_pages: int, is_async: bool) -> LoadOrder:
    """Of pages of any slots, in no order."""
    rng = np.random.default_rng(number)
    slots = rng.permutation(NUM_SLOTS)[:num_pages]
    rows = np.zeros(num_pages, dtype=SLOT_DTYPE)
    rows["extent"], rows["slot"], rows["generation"] = 1, slots, slots + 1
    pages = rng.permutation(NUM_SLOTS)[:num_pages].astype(np.int32).reshape(1, -1, 1)
    lease = number.to_bytes(16, "little")
    return LoadOrder(1, number, lease, EPOCH, rows.tobytes(), 1, pages, is_async)


def measure(num_rounds: int) -> dict[str, dict[str, float]]:
    """Queues orders of several sizes.

    Args:
        num_rounds: orders of each kind.

    Returns:
        Name to figures: µs of CPU a hook, and a page.
    """
    table = ExtentTable(lambda: None)
    file = ExtentFile(cut(1, namespace(page_bytes=PAGE), NUM_SLOTS), ArenaId(b"a" * 16))
    size = file.geometry.file_bytes
    mapping = mmap.mmap(file.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
    table.add(MappedExtent(EPOCH, file.geometry, mapping))
    pages = GroupPages((PagePart.on_device(1 << 40, NUM_SLOTS * PAGE, PAGE, PAGE),), NUM_SLOTS)
    each = PAGE // NUM_LAYERS
    layers = {layer: (LayerSlice(0, layer * each, each),) for layer in range(NUM_LAYERS)}
    device = cast(Device, IdleDevice())
    memory = PageMemory((pages,), None, layers=layers, device=device)
    leases, found, number = Leases(table), {}, 0
    for name, is_async, by_layer in (
        ("before the forward", False, False),
        ("in the background", True, False),
        (f"by layer, {NUM_LAYERS} layers", False, True),
    ):
        loader = Loader()
        geo = geometry(page_bytes=PAGE, num_pages=NUM_SLOTS)
        loads = DeviceLoads(memory, geo, Journal(LOGGER), loader, device, by_layer)
        loader.stop(0)  # so that it takes no part: the hooks end the loads
        _prove_hooks(loads, leases)
        for num_pages in SIZES:
            taken_us: list[float] = []
            for _ in range(num_rounds):
                number += 1
                wanted = ConnectorMetadata(
                    number, loads=(order(number, num_pages, is_async),), may_fire=True
                )
                taken_us.append(_cpu_us(partial(loads.begin, wanted, leases, None)))
                for layer in range(NUM_LAYERS):
                    loads.wait_for_layer(layer, None)
                loads.launched()
                loads.take_arrived([])
            median_us = statistics.median(taken_us)
            found[f"{name}, {num_pages} pages"] = {
                "hook_us": median_us,
                "page_us": median_us / num_pages,
            }
    file.close()
    return found


def _prove_hooks(loads: DeviceLoads, leases: Leases) -> None:
    loads.begin(ConnectorMetadata(0, may_fire=True), leases, None)
    for layer in range(NUM_LAYERS):
        loads.wait_for_layer(layer, None)
    loads.launched()


def _cpu_us(function: Callable[[], object]) -> float:
    begin_ns = time.thread_time_ns()
    function()
    return (time.thread_time_ns() - begin_ns) / 1e3


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--rounds", default=200, show_default=True, help="Orders of each kind and size.")
def main(as_json: bool, rounds: int) -> None:
    """Measures what queueing loads takes."""
    figures = measure(rounds)
    if as_json:
        click.echo(json.dumps(figures, indent=2))
        return
    click.echo(f"{'one order':40}{'CPU p50 us':>12}{'us a page':>12}")
    for name, it in figures.items():
        click.echo(f"{name:40}{it['hook_us']:12.1f}{it['page_us']:12.3f}")


if __name__ == "__main__":
    main()

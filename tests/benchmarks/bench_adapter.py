"""What the adapter costs the executor's thread per request and step, in steady decode.

    python -m tests.benchmarks.bench_adapter [--json PATH] [--active N] [--tokens N] [--cycles N]

256 requests of 32k tokens generate a token each per iteration, against a real server that holds
their prompts; then the same with half as many tokens. What is measured is CPU by the thread's own
clock, over the hooks of one iteration: the cost must follow new tokens, so that the ratio of both
lengths is about 1. A program, not a test: ``test_bench_adapter`` judges it at a smaller size.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np

from adapter.pages import SharedPool
from server import asking
from tests.adapter.enginerig import EngineRig, launched, write_model
from tests.adapter.hostlike import Args, CacheConfig, FakeRequest, Output, Report
from tests.adapter.test_identity import FakeTensor

SIZE: Final = 32
"""Tokens of a block; a cycle is as many steps: each request fills one block in it."""

HEAD_DIM: Final = 2
PAGE_FLOATS: Final = 2 * SIZE * HEAD_DIM
"""K and V of a block, one layer and one head: small, since only the count of pages matters here."""

HOOKS: Final = (
    *("build_connector_meta", "bind_connector_meta", "start_load_kv"),
    *("wait_for_save", "get_finished"),
)
SETTLE_S: Final = 60.0
SETTLE_STEP_S: Final = 0.005


@dataclass
class Cycle:
    """CPU of ``SIZE`` iterations.

    Attributes:
        hook_us: of each hook, microseconds.
    """

    hook_us: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HOOKS, 0.0))

    def timed(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls and adds up."""
        begin_ns = time.thread_time_ns()
        result = function(*arguments)
        self.hook_us[name] += (time.thread_time_ns() - begin_ns) / 1e3
        return result


class Batch:
    """Requests that generate for ever.

    Args:
        rig: registered.
        active: how many.
        num_tokens: of each prompt, whole blocks.
    """

    def __init__(self, rig: EngineRig, active: int, num_tokens: int) -> None:
        self.rig = rig
        self.active = active
        body = list(range(1, num_tokens))
        output = Output()
        self.lengths: dict[int, int] = {}
        for number in range(active):
            request = FakeRequest(1 + number, [number, *body])
            rig.query(request)
            pages = rig.hand_out(num_tokens // SIZE)
            rig.scheduler.update_state_after_alloc(request, pages)
            output.new_requests.append(
                Report(request.request_id, list(request.tokens), pages, 0, num_tokens)
            )
            self.lengths[request.request_id] = num_tokens
        self._iterate(output, Cycle())

    def step(self, cycle: Cycle) -> None:
        """One token for each."""
        output = Output()
        for request_id, length in self.lengths.items():
            pages = self.rig.hand_out(1) if length % SIZE == 0 else []
            output.cached_requests.append(Report(request_id, [length % 1000], pages, length, 1))
            self.lengths[request_id] = length + 1
        self._iterate(output, cycle)

    def _iterate(self, output: Output, cycle: Cycle) -> None:
        rig = self.rig
        metadata = cycle.timed("build_connector_meta", rig.scheduler.build_connector_meta, output)
        cycle.timed("bind_connector_meta", rig.worker.bind_connector_meta, metadata)
        cycle.timed("start_load_kv", rig.worker.start_load_kv, rig.stream)
        cycle.timed("wait_for_save", rig.worker.wait_for_save, rig.stream)
        cycle.timed("get_finished", rig.worker.get_finished, [], [])

    def settle(self, side_path: str, wanted: int) -> int:
        """Generates until the prompts are saved.

        Args:
            side_path: of the server.
            wanted: chunks of all prompts.

        Returns:
            Chunks published by then; at least ``wanted`` unless it took too long.
        """
        published, end_s = 0, time.monotonic() + SETTLE_S
        while published < wanted and time.monotonic() < end_s:
            for _ in range(SIZE):
                self.step(Cycle())
                time.sleep(SETTLE_STEP_S)  # a pace: the saver needs the interpreter now and then
            published = asking.stats(side_path, 10.0).get("published_chunks", 0)
        return published


def measure(active: int, num_tokens: int, num_cycles: int, l1_size: str = "2G") -> dict[str, Any]:
    """Cost in steady decode.

    Args:
        active: requests in the batch.
        num_tokens: of each prompt, whole blocks.
        num_cycles: measured, of ``SIZE`` iterations each.
        l1_size: room of the server.

    Returns:
        Microseconds per request and step: of each hook, and ``total`` (median of the cycles) and
        ``least`` (the best one); chunks that were saved before.
    """
    # No page is ever used twice: that would withdraw saves.
    most_cycles = num_cycles + int(SETTLE_S / SETTLE_STEP_S / SIZE) + 1
    num_pages = active * (num_tokens // SIZE + most_cycles)
    args = Args(kv_cache_config=CacheConfig(tokens_per_block=SIZE))
    with TemporaryDirectory(prefix="kvk-") as folder, launched("--l1-size", l1_size) as server:
        model = write_model(
            Path(folder) / "m", num_hidden_layers=1, num_key_value_heads=1, head_dim=HEAD_DIM
        )
        rig = EngineRig(server.url, model, 1, args)
        rig.pool = SharedPool.create(num_pages * PAGE_FLOATS * 4)
        rig.pages = rig.pool.view.reshape(num_pages, PAGE_FLOATS * 4)
        rig.tensor = FakeTensor(
            rig.pool.view.view(np.float32).reshape(num_pages, 1, 2, PAGE_FLOATS // 2)
        )
        rig.register()
        try:
            assert rig.worker.link is not None, "the engine runs uncached: nothing to measure"
            batch = Batch(rig, active, num_tokens)
            saved = batch.settle(server.side_path, active * num_tokens // SIZE)
            cycles = []
            for _ in range(num_cycles):
                cycles.append(Cycle())
                for _ in range(SIZE):
                    batch.step(cycles[-1])
        finally:
            rig.close()
    steps = active * SIZE
    totals = [sum(cycle.hook_us.values()) / steps for cycle in cycles]
    figures: dict[str, Any] = {
        name: statistics.median(cycle.hook_us[name] for cycle in cycles) / steps for name in HOOKS
    }
    return figures | {
        "total": statistics.median(totals),
        "least": min(totals),
        "saved_chunks": saved,
    }


def compare(active: int, num_tokens: int, num_cycles: int) -> dict[str, Any]:
    """Both lengths.

    Args:
        active: requests in the batch.
        num_tokens: of each prompt; then half of it.
        num_cycles: measured.

    Returns:
        JSON-ready.
    """
    lengths = (num_tokens // 2, num_tokens)
    found = {str(length): measure(active, length, num_cycles) for length in lengths}
    short, long = (found[str(length)]["total"] for length in lengths)
    return {
        "active": active,
        "steps": num_cycles * SIZE,
        "us_per_request_and_step": found,
        "ratio_of_doubled_length": long / short,
    }


@click.command()
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where to write figures.")
@click.option("--active", default=256, show_default=True, help="Requests in the batch.")
@click.option("--tokens", default=32_768, show_default=True, help="Tokens of each prompt.")
@click.option("--cycles", default=12, show_default=True, help="Cycles of 32 measured iterations.")
def main(path: Path | None, active: int, tokens: int, cycles: int) -> None:
    """Measures CPU per request and step."""
    found = compare(active, tokens, cycles)
    by_length = found["us_per_request_and_step"]
    click.echo(f"{active} requests decode; microseconds of CPU per request and step")
    click.echo(f"{'prompt tokens':24}" + "".join(f"{length:>10}" for length in by_length))
    for name in (*HOOKS, "total", "least"):
        cells = "".join(f"{figures[name]:10.3f}" for figures in by_length.values())
        click.echo(f"{name:24}{cells}")
    saved = "".join(f"{figures['saved_chunks']:10d}" for figures in by_length.values())
    click.echo(f"{'chunks saved before':24}{saved}")
    click.echo(f"ratio of doubled length {found['ratio_of_doubled_length']:.2f}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

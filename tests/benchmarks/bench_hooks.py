"""What the hooks cost the executor's thread: CPU per call, by the thread's own clock.

    python -m tests.benchmarks.bench_hooks [--json] [--rounds N]

A program, not a test: it judges nothing, since a busy machine would decide. It launches a server,
registers an engine without torch, and calls the real hooks as the host does: 256 requests that
generate, and cold prompts of 128k tokens. Wall time of a query includes the server's answer.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np

from tests.adapter.enginerig import PAGE_BYTES, EngineRig, launched, write_model
from tests.adapter.enginerig import SIZE as SMALL
from tests.adapter.hostlike import FakeRequest, Output, Report
from tests.adapter.test_identity import FakeTensor

NUM_DECODING: Final = 256
PROMPT_TOKENS: Final = 64
LONG_TOKENS: Final = 131_072
NUM_PAGES: Final = 8192
SIZE: Final = 32
"""Tokens of a block."""


class Meter:
    """Collects CPU and wall time per name, in milliseconds."""

    def __init__(self) -> None:
        self.cpu_ms: dict[str, list[float]] = {}
        self.wall_ms: dict[str, list[float]] = {}

    def timed(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls and measures."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        result = function(*arguments)
        self.cpu_ms.setdefault(name, []).append((time.thread_time_ns() - cpu) / 1e6)
        self.wall_ms.setdefault(name, []).append((time.perf_counter_ns() - wall) / 1e6)
        return result

    def figures(self) -> dict[str, dict[str, float]]:
        """Name to p50 and p99 of CPU, and p50 of wall time."""
        found = {}
        for name, cpu in self.cpu_ms.items():
            cuts = statistics.quantiles(cpu, n=100) if len(cpu) > 1 else [cpu[0]] * 99
            wall_ms = statistics.median(self.wall_ms[name])
            found[name] = {"cpu_p50_ms": cuts[49], "cpu_p99_ms": cuts[98], "wall_p50_ms": wall_ms}
        return found


def decode(rig: EngineRig, meter: Meter, num_rounds: int) -> None:
    """All requests generate at once; one block in ``SIZE`` steps becomes full."""
    lengths: dict[int, int] = {}
    first = Output()
    for number in range(NUM_DECODING):
        request = FakeRequest(10_000 + number, [number, *range(1, PROMPT_TOKENS)])
        meter.timed("query, 64 tokens", rig.query, request)
        pages = rig.hand_out(-(-PROMPT_TOKENS // SIZE))
        rig.scheduler.update_state_after_alloc(request, pages)
        first.new_requests.append(
            Report(request.request_id, list(request.tokens), pages, 0, PROMPT_TOKENS)
        )
        lengths[request.request_id] = PROMPT_TOKENS
    rig.iterate(first)
    for _ in range(num_rounds):
        output = Output()
        for request_id, length in lengths.items():
            pages = rig.hand_out(1) if length % SIZE == 0 else []
            output.cached_requests.append(Report(request_id, [length], pages, length, 1))
            lengths[request_id] = length + 1
        metadata = meter.timed("build, 256 decoding", rig.scheduler.build_connector_meta, output)
        meter.timed("bind, 256 decoding", rig.worker.bind_connector_meta, metadata)
        meter.timed("start_load, no load", rig.worker.start_load_kv, rig.stream)
        meter.timed("wait_for_save", rig.worker.wait_for_save, rig.stream)
        meter.timed("get_finished", rig.worker.get_finished, [], [])


def long_prompts(rig: EngineRig, meter: Meter, num_rounds: int) -> None:
    """Cold prompts: hashed once, looked up, reported, finished."""
    for number in range(num_rounds):
        request = FakeRequest(50_000 + number, [number, *range(1, LONG_TOKENS)])
        meter.timed("query, 128k tokens cold", rig.query, request)
        pages = rig.hand_out(LONG_TOKENS // SIZE)
        meter.timed("alloc, 128k", rig.scheduler.update_state_after_alloc, request, pages)
        report = Report(request.request_id, list(request.tokens), pages, 0, 8192)
        metadata = meter.timed(
            "build, 128k new", rig.scheduler.build_connector_meta, Output([report])
        )
        meter.timed("bind, 128k new", rig.worker.bind_connector_meta, metadata)
        rig.scheduler.request_finished(request, [])


def measure(num_rounds: int) -> dict[str, dict[str, float]]:
    """Runs everything against a server of its own.

    Args:
        num_rounds: iterations of the decoding batch.

    Returns:
        Hook to figures in milliseconds.
    """
    meter = Meter()
    with TemporaryDirectory(prefix="kvk-") as folder, launched("--l1-size", "256M") as server:
        rig = EngineRig(server.url, write_model(Path(folder) / "m"), NUM_PAGES * SIZE // SMALL)
        rows = rig.pool.view.reshape(NUM_PAGES, SIZE // SMALL * PAGE_BYTES)
        rig.pages = rows
        rig.tensor = FakeTensor(rows.view(np.float32).reshape(NUM_PAGES, 2, 2, -1))
        rig.register()
        try:
            decode(rig, meter, num_rounds)
            long_prompts(rig, meter, 7)
        finally:
            rig.close()
    return meter.figures()


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--rounds", default=300, show_default=True, help="Iterations of the decoding batch.")
def main(as_json: bool, rounds: int) -> None:
    """Measures the hooks' CPU time."""
    figures = measure(rounds)
    if as_json:
        click.echo(json.dumps(figures, indent=2))
        return
    click.echo(f"{'hook':28}{'CPU p50 ms':>12}{'CPU p99 ms':>12}{'wall p50 ms':>13}")
    for name, it in figures.items():
        click.echo(
            f"{name:28}{it['cpu_p50_ms']:12.3f}{it['cpu_p99_ms']:12.3f}{it['wall_p50_ms']:13.3f}"
        )


if __name__ == "__main__":
    main()

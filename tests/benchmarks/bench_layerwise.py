"""What loading by layer gains over loading whole pages before the forward.

    python -m tests.benchmarks.bench_layerwise [--json] [--mib M] [--rounds N]

A program, not a test: ``make slow`` judges what it says, on a quiet machine. The conformance host
runs a model of 32 layers and 128 KiB a token, whose layers take a set time and no CPU, as on a
device. One prompt is stored, then asked for again and again, the host's own reuse emptied each
time. The layers' time follows from the load's: forwards of half the load's time, the same, and
twice that. For each the time to the first token is measured with nothing to load, with whole pages,
and by layer; ``hidden`` is the share of the load that the computation hid.

The host does not poison the pages that it hands out, as elsewhere: no engine does, and every load
would wait for it. That the bytes are right is for the tests to say.
"""

from __future__ import annotations

import json
import logging
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.forward import ForwardEntry
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from tests.adapter.enginerig import launched, write_model
from tests.e2e.torchhost import BLOCK, llm_args

NUM_LAYERS: Final = 32
TOKEN_BYTES: Final = 128 << 10
RATIOS: Final = (0.5, 1.0, 2.0)
WAIT_S: Final = 60.0
WARM_UP: Final = 3
"""Requests before measuring: the first load by layer needs hooks that were seen."""


_OVERSLEPT_S: Final = 0.0003
"""A device begins a queued layer when the one before ends; a thread that sleeps ends it late, by so
much at most. It is made up for once, not once for each layer."""


class TimedModel(PayloadModel):
    """Layers that take time for a prompt and leave the pages alone."""

    layer_s = 0.0
    _end_s = 0.0

    def layer(self, index: int, entries: Sequence[ForwardEntry]) -> None:
        """Takes its time; a generated token costs nothing."""
        if any(entry.num_tokens > 1 for entry in entries):
            now_s = time.perf_counter()
            self._end_s = max(self._end_s, now_s - _OVERSLEPT_S) + self.layer_s
            time.sleep(max(0.0, self._end_s - now_s))


def leave(pages: Sequence[Sequence[int]]) -> None:
    """Leaves pages as they are."""


@dataclass
class Row:
    """Medians of the time to the first token, at one ratio of computation to load.

    Attributes:
        compute_to_load: what was aimed at.
        layer_ms: time of a layer.
        compute_ms: nothing to load.
        whole_ms: whole pages before the forward.
        by_layer_ms: each layer before its attention.
        hidden: share of the load's time that the computation hid.
        gain: ``whole_ms / by_layer_ms``.
    """

    compute_to_load: float
    layer_ms: float
    compute_ms: float
    whole_ms: float
    by_layer_ms: float
    hidden: float
    gain: float


class Subject:
    """An engine in one load mode, and what is asked of it."""

    def __init__(self, host: HostEngine, model: TimedModel, prompt: list[int]) -> None:
        self._host = host
        self._model = model
        self._prompt = prompt
        self._rng = random.Random(7)

    def prepare(self) -> None:
        """Stores the prompt, if no one did, and loads it a few times."""
        self._model.layer_s = 0.0
        for _ in range(WARM_UP):
            self._ask(self._prompt)

    def hit_ms(self, layer_s: float) -> float:
        """Time to the first token, the prompt loaded but for its tail."""
        self._model.layer_s = layer_s
        return self._ask(self._prompt)

    def miss_ms(self, layer_s: float) -> float:
        """The same for a short prompt that nobody has seen: computation alone."""
        self._model.layer_s = layer_s
        return self._ask([self._rng.randrange(250) for _ in range(BLOCK // 2 + 1)])

    def loaded_bytes(self) -> int:
        """Bytes loaded so far."""
        return int(self._host.connector.worker.counters().get("bytes_loaded", 0))

    def _ask(self, tokens: list[int]) -> float:
        begin_s = time.perf_counter()
        self._host.submit(tokens, 1).result(WAIT_S)
        taken_ms = (time.perf_counter() - begin_s) * 1e3
        self._host.forget_reuse(WAIT_S)
        return taken_ms


@contextmanager
def subject(url: str, folder: Path, mode: str, prompt: list[int]) -> Iterator[Subject]:
    """An engine in a load mode."""
    os.environ["TRTLLM_KVKEEP_LOAD_MODE"] = mode
    os.environ["TRTLLM_KVKEEP_QUERY_BUDGET_MS"] = "1000"
    os.environ["TRTLLM_KVKEEP_HELD_PAGES_PERCENT"] = "100"
    per_layer = TOKEN_BYTES // NUM_LAYERS // 2
    model = TimedModel(BLOCK, bytes_per_token=per_layer, num_layers=NUM_LAYERS)
    num_blocks = 2 * (len(prompt) // BLOCK) + 16
    args = llm_args(folder, url, max_num_tokens=len(prompt) + 64)
    options = HostOptions(capture_logits=False)
    host = HostEngine(args, num_blocks, model=model, options=options)
    host.device.poison = leave  # type: ignore[method-assign]
    try:
        made = Subject(host, model, prompt)
        made.prepare()
        yield made
    finally:
        host.shutdown()
        host.connector.worker.shutdown()


def measure(mib: int, num_rounds: int) -> dict[str, object]:
    """Runs everything against a server of its own.

    Args:
        mib: bytes of the loaded prefix, in MiB.
        num_rounds: requests a median is taken of.

    Returns:
        Figures, JSON-ready.

    Raises:
        click.ClickException: the load is too short to be measured.
    """
    num_tokens = mib * (1 << 20) // TOKEN_BYTES
    rng = random.Random(3)
    prompt = [rng.randrange(250) for _ in range(num_tokens + BLOCK // 2)]
    with TemporaryDirectory(prefix="kvk-") as folder, launched("--l1-size", f"{4 * mib}M") as it:
        model = write_model(
            Path(folder) / "m",
            num_hidden_layers=NUM_LAYERS,
            head_dim=TOKEN_BYTES // NUM_LAYERS // 4,
        )
        with (
            subject(it.url, model, "sync", prompt) as whole,
            subject(it.url, model, "layerwise", prompt) as layered,
        ):
            before = whole.loaded_bytes()
            bare = [(whole.hit_ms(0.0), whole.miss_ms(0.0)) for _ in range(num_rounds)]
            load_ms = statistics.median(hit - miss for hit, miss in bare)
            if load_ms <= 0:
                raise click.ClickException(
                    f"a load of {mib} MiB cannot be told from the machine's noise: more --mib"
                )
            load_bytes = (whole.loaded_bytes() - before) // num_rounds
            steps = [ratio * load_ms / 1e3 / NUM_LAYERS for ratio in RATIOS]
            # By turns, so that what else the machine does is alike for all three.
            asks = (whole.miss_ms, whole.hit_ms, layered.hit_ms)
            times = [[[ask(step) for ask in asks] for _ in range(num_rounds)] for step in steps]
    rows = [
        _row(ratio, step, *(statistics.median(column) for column in zip(*rounds, strict=True)))
        for ratio, step, rounds in zip(RATIOS, steps, times, strict=True)
    ]
    return {
        "load_bytes": load_bytes,
        "load_ms": load_ms,
        "load_gb_per_s": load_bytes / load_ms / 1e6,
        "num_layers": NUM_LAYERS,
        "rows": [asdict(row) for row in rows],
    }


def _row(ratio: float, step: float, compute_ms: float, whole_ms: float, layer_ms: float) -> Row:
    return Row(
        compute_to_load=ratio,
        layer_ms=step * 1e3,
        compute_ms=compute_ms,
        whole_ms=whole_ms,
        by_layer_ms=layer_ms,
        hidden=(whole_ms - layer_ms) / (whole_ms - compute_ms),
        gain=whole_ms / layer_ms,
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--mib", default=256, show_default=True, help="Size of the loaded prefix.")
@click.option("--rounds", default=21, show_default=True, help="Requests a median is taken of.")
def main(as_json: bool, mib: int, rounds: int) -> None:
    """Measures the time to the first token, whole and by layer."""
    logging.getLogger("kvkeep").setLevel(logging.ERROR)
    figures = measure(mib, rounds)
    if as_json:
        click.echo(json.dumps(figures, indent=2))
        return
    click.echo(
        f"a load of {figures['load_bytes']} bytes takes {figures['load_ms']:.1f} ms: "
        f"{figures['load_gb_per_s']:.1f} GB/s"
    )
    head = ("compute/load", "layer ms", "compute ms", "whole ms", "by layer ms", "hidden", "gain")
    click.echo("".join(f"{name:>14}" for name in head))
    rows = figures["rows"]
    assert isinstance(rows, list)
    for row in rows:
        click.echo("".join(f"{value:14.2f}" for value in row.values()))


if __name__ == "__main__":
    main()

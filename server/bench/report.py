"""A run as a table for people and as JSON for programs.

Purpose: show every figure with what stands beside it, its target and the verdict. Must not know:
how figures are judged. Runs in: the benchmark's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from server.bench.figures import Figure
from server.bench.sizing import Sizing

SCHEMA = 1
"""Version of the JSON document; raised when a field changes its meaning or goes."""

_VERDICT = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}


def document(
    figures: Sequence[Figure],
    machine: Mapping[str, Any],
    sizing: Sizing,
    seed: int,
    quick: bool,
    samples: Mapping[str, Any],
) -> dict[str, Any]:
    """The JSON document of docs/benchmarks.md.

    Args:
        figures: judged.
        machine: from ``machine.describe``.
        sizing: sizes of the run.
        seed: of its orders and tokens.
        quick: whether it was the short run.
        samples: what was taken down round by round.

    Returns:
        Plain values.
    """
    return {
        "schema": SCHEMA,
        "machine": dict(machine),
        "run": {"seed": seed, "quick": quick, **asdict(sizing)},
        "figures": {figure.name: figure.value for figure in figures},
        "targets": {
            figure.name: {"target": figure.target, "met": figure.met}
            for figure in figures
            if figure.met is not None
        },
        "samples": dict(samples),
    }


def table(figures: Sequence[Figure]) -> Table:
    """The table that a person reads.

    Args:
        figures: judged, in order.

    Returns:
        For ``rich``.
    """
    shown = Table(title="kvkeep bench", title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("figure", no_wrap=True)
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_column("beside it")
    shown.add_column("target")
    shown.add_column("", no_wrap=True)
    has_peers = any(figure.peer for figure in figures)
    if has_peers:
        shown.add_column("LMCache", justify="right", no_wrap=True)
    for figure in figures:
        shown.add_row(
            figure.name,
            f"{_number(figure.value)} {figure.unit}".strip(),
            figure.beside,
            figure.target,
            _VERDICT[figure.met],
            *([figure.peer] if has_peers else []),
        )
    return shown


def show(console: Console, figures: Sequence[Figure], machine: Mapping[str, Any]) -> None:
    """Prints the table with what it was measured on.

    Args:
        console: where.
        figures: judged.
        machine: from ``machine.describe``.
    """
    console.print(table(figures))
    console.print(
        f"{machine['cpus']} × {machine['cpu']}, load {machine['load_1min']}, Linux "
        f"{machine['kernel']}, Python {machine['python']}, kvkeep {machine['kvkeep']} "
        f"({machine['commit'] or 'no git checkout'})",
        highlight=False,
    )
    if not any(figure.peer for figure in figures):
        return
    console.print(
        "LMCache: version 0.5.6 measured on another day; read ratios and orders of magnitude.",
        style="dim",
        highlight=False,
    )


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"

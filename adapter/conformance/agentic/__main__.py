"""``python -m adapter.conformance.agentic``: plays the agentic benchmark; exit code 0 if all held.

Must not know: what is played. Runs in the main thread of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from adapter.conformance.agentic import curve, report
from adapter.conformance.agentic.outcome import Outcome
from adapter.conformance.agentic.rig import MAX_PAGE_BYTES, Report, Scale
from adapter.conformance.agentic.run import run
from adapter.conformance.agentic.workload import Workload
from adapter.conformance.demo.processes import DemoError

_INTERRUPTED = 130
_LAYERS = 32
_TOKEN_KIB = 128
_ABOUT = (
    "agentic-144: twelve agents take twelve turns, one request at a time, through the conformance "
    "host, the connector and a server of its own. Exit code 0: every count is the expected one and "
    "every loaded block was compared bit for bit; 1: not so; 2: it could not begin; "
    "130: interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the benchmark and show its tables.

    Args:
        arguments: Command line without the program; None for this process's.

    Returns:
        0 if all held, 1 if not, 2 if it could not begin, 130 if interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m adapter.conformance.agentic", description=_ABOUT
    )
    parser.add_argument("--quick", action="store_true", help="three agents, three turns")
    parser.add_argument(
        "--block-tokens",
        type=int,
        default=32,
        metavar="N",
        help="tokens of a block; 256 needs 16 GiB of memory, 32 needs 2.5 GiB",
    )
    parser.add_argument(
        "--token-kib",
        type=int,
        metavar="N",
        help="KV of a token in KiB; memory and time follow it "
        f"(default: {_TOKEN_KIB}, next to nothing with --quick)",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write all figures")
    parser.add_argument("--png", type=Path, metavar="PATH", help="where to draw the warm-up curve")
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=120, highlight=False)
    try:
        _check_paths(options)
        scale = _scale(options)
        with _bar(console) as bar:
            outcome = run(scale, lambda title: _begin(bar, title))
    except (DemoError, ValueError) as error:
        console.print(f"kvkeep agentic: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("kvkeep agentic: interrupted; everything it started is gone")
        return _INTERRUPTED
    for part in (report.turns(outcome), report.figures(outcome), report.verdict(outcome)):
        console.print(part)
    _write(console, outcome, options.json, options.png)
    return 1 if outcome.wrong() else 0


def _scale(options: argparse.Namespace) -> Scale:
    size = Workload(options.block_tokens)
    if options.quick:
        size = Workload(options.block_tokens, agents=3, turns=3)
        if options.token_kib is None:
            return Scale(size).small()
    token_kib = _TOKEN_KIB if options.token_kib is None else options.token_kib
    if token_kib < 1:
        raise ValueError("--token-kib must be at least 1")
    scale = Scale(size, _LAYERS, token_kib * 1024 // (2 * _LAYERS))
    if scale.page_bytes > MAX_PAGE_BYTES:
        raise ValueError(
            f"a block of {options.block_tokens} tokens of {token_kib} KiB has more than "
            f"{MAX_PAGE_BYTES >> 20} MiB: lower --token-kib or --block-tokens"
        )
    return scale


def _check_paths(options: argparse.Namespace) -> None:
    """Sees before a run of minutes that its figures can be written.

    Raises:
        ValueError: one cannot.
    """
    for name, path in (("--json", options.json), ("--png", options.png)):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise ValueError(f"{name}: there is no folder {path.parent}")
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{name}: {path} cannot be written")
    if options.png is not None and options.png.suffix.lower() != ".png":
        raise ValueError(f"--png: {options.png} does not end in .png")


def _bar(console: Console) -> Progress:
    columns = (TextColumn("  {task.description}"), BarColumn(32), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _begin(bar: Progress, title: str) -> Report:
    task = bar.add_task(title, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


def _write(console: Console, outcome: Outcome, figures: Path | None, png: Path | None) -> None:
    if figures is not None:
        figures.write_text(json.dumps(outcome.document(), indent=2) + "\n", encoding="utf-8")
        console.print(f"all figures: {figures}", style="dim", highlight=False)
    if png is None:
        return
    if not curve.can_draw():
        console.print("no picture: matplotlib is not installed (it is in kvkeep[dev])", style="dim")
        return
    curves = [
        ("prompts saved", outcome.summary.cumulative),
        ("answers saved too", outcome.answers_summary.cumulative),
    ]
    curve.draw(png, curves, outcome.summary.per_turn, outcome.scale.workload.agents)
    console.print(f"warm-up curve: {png}", style="dim", highlight=False)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    raise SystemExit(main())

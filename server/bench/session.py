"""One run of the benchmark from end to end: sizes, children, progress, output, exit code.

Purpose: everything around ``server.bench.run`` that a person at a terminal sees. Must not know:
options. Runs in: the process of the command line, in its main thread.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from protocol.errors import KvkeepError
from server.bench import children, figures, machine, noise, report, scraping, sizing
from server.bench.run import Begin, Run

_FILE_COLUMNS = 110
"""Width of the table where no terminal says its own."""


def run(as_json: bool, quick: bool, check: bool, seed: int, scrape: bool = False) -> int:
    """Measures and shows.

    Args:
        as_json: JSON on stdout instead of the table.
        quick: the short run.
        check: whether missed targets count.
        seed: of tokens and orders.
        scrape: what scraping changes instead of everything.

    Returns:
        Exit code: 0; 1 for missed targets with ``check``; 2 when it could not measure; 130 after
        Ctrl-C.
    """
    errors = Console(stderr=True)
    facts = machine.describe()
    try:
        sizes = sizing.choose(sizing.available_bytes(), quick)
        with _ended_by_signals(), children.workplace() as place, _progress(errors) as begin:
            found, taken = _measure(place, sizes, seed, begin, scraping.TURNS[quick], scrape)
    except (children.BenchError, KvkeepError, OSError) as error:
        errors.print(f"bench: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("bench: stopped", highlight=False)
        return 130
    if as_json:
        document = report.document(found, facts, sizes, seed, quick, taken)
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        out = Console()
        if not out.is_terminal:
            out.width = _FILE_COLUMNS
        report.show(out, found, facts)
    return 1 if check and figures.missed(found) else 0


def _measure(
    place: children.Workplace,
    sizes: sizing.Sizing,
    seed: int,
    begin: Begin,
    turns: scraping.Turns,
    scrape: bool,
) -> tuple[list[figures.Figure], dict[str, Any]]:
    if scrape:
        by_side, taken = scraping.ScrapeRun(place, sizes, turns, seed, begin).measure()
        return noise.figures(by_side[False], by_side[True]), taken
    measured, taken = Run(place, sizes, seed, begin).measure()
    return figures.figures(measured), taken


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets the first signal end the run; further ones do not disturb the clearing up."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, end) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _progress(console: Console) -> Iterator[Begin]:
    """Shows each step with its bar, on a terminal; a line per step elsewhere."""
    columns = (TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn())
    # Few refreshes: drawing takes CPU from what is measured.
    live = console.is_terminal
    with Progress(
        *columns, console=console, refresh_per_second=2, transient=True, disable=not live
    ) as bars:

        def begin(name: str) -> children.Progress:
            task = bars.add_task(name, total=None)
            if not live:
                console.print(name, highlight=False)

            def advance(done: int, of: int) -> None:
                bars.update(task, completed=done, total=of)

            return advance

        yield begin

"""``python -m adapter.conformance.schedules``: seeded schedules over combinations, with a server.

Prints a table, or JSON, and exits with 1 when an answer was wrong or something was left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adapter.conformance.coverage.combine import combinations
from adapter.conformance.coverage.dimensions import DEVICE, MODE, RANKS, Combination
from adapter.conformance.host.simulated import simulating
from adapter.conformance.schedules.play import PlayError, Tally
from adapter.conformance.schedules.service import serving
from adapter.conformance.schedules.sweep import Sweep


def main(arguments: list[str]) -> int:
    """Runs a sweep.

    Args:
        arguments: of the command line.
    """
    options = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    console = Console(stderr=True)
    console.print(f"seed {seed}", markup=False)
    began_s = time.monotonic()
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="kvkeep-models-") as models:
        for mode in options.mode or MODE.names:
            tallies[mode] = _run_mode(mode, seed, options, Path(models), console)
    result = document(seed, time.monotonic() - began_s, tallies) | {"device": options.device}
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        # A table for 80 columns cuts its headings; a pipe has room.
        Console(width=None if sys.stdout.isatty() else 140).print(_table(result))
    return 1 if result["errors"] else 0


def _run_mode(
    mode: str, seed: int, options: argparse.Namespace, models: Path, console: Console
) -> Tally:
    chosen = [c for c in combinations() if c.mode == mode and _wanted(c, options)]
    tally = Tally()
    share, rest = divmod(options.count, max(1, len(chosen)))
    with ExitStack() as stack:
        environ: Mapping[str, str] = {}
        if options.device == "simulated":
            environ = stack.enter_context(simulating(seed))
        service = stack.enter_context(serving(environ))
        sweep = stack.enter_context(Sweep(service.url, models, options.device))
        for number, combination in enumerate(chosen):
            count = share + (number < rest)
            first = seed + number * 1_000_003
            if not count:  # fewer schedules than combinations: no engine for nothing
                break
            try:
                sweep.run(combination, range(first, first + count), tally)
            except PlayError as error:
                tally.errors.append(str(error))
            except Exception as error:  # noqa: BLE001 - told like any other failure, and counted
                tally.errors.append(f"{combination.test_id}: {error!r}")
            state = "ok" if not tally.errors else f"{len(tally.errors)} failed"
            console.print(f"{mode}: {tally.schedules} schedules, {state}", markup=False)
    return tally


def _wanted(combination: Combination, options: argparse.Namespace) -> bool:
    return not options.ranks or combination.ranks in options.ranks


def document(seed: int, seconds: float, tallies: dict[str, Tally]) -> dict[str, Any]:
    """The result as plain values.

    Args:
        seed: of the run.
        seconds: it took.
        tallies: by mode.
    """
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "schedules": sum(one.schedules for one in tallies.values()),
        "errors": [line for one in tallies.values() for line in one.errors],
        "modes": {mode: asdict(one) for mode, one in tallies.items()},
    }


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"{result['schedules']} schedules, seed {result['seed']}")
    columns = ("schedules", "requests", "cancelled", "compared", "prompt_tokens", "loaded_tokens")
    table.add_column("mode")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    table.add_column("errors", overflow="fold")
    for mode, tally in result["modes"].items():
        cells = (str(tally[column]) for column in columns)
        table.add_row(mode, *cells, "\n".join(tally["errors"]))
    return table


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:  # none played would be told as none wrong
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m adapter.conformance.schedules",
        description="Plays random requests through the connector, the conformance host and a "
        "server, and compares each answer with that of an engine without a cache.",
    )
    parser.add_argument("--seed", type=int, help="of an earlier run; a fresh one otherwise")
    parser.add_argument("--count", type=_positive, default=25, help="schedules of each mode (25)")
    parser.add_argument("--mode", action="append", choices=MODE.names, help="repeatable")
    parser.add_argument(
        "--ranks", action="append", choices=RANKS.names, help="only these; repeatable"
    )
    parser.add_argument(
        "--device", choices=DEVICE.names, default="host", help="where pools lie (host)"
    )
    parser.add_argument("--json", action="store_true", help="JSON in place of the table")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

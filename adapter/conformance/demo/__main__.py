"""``python -m adapter.conformance.demo``: plays the demo; exit code 0 if all held.

Must not know: what is played. Runs in the demo's main thread.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from adapter.conformance.demo import report
from adapter.conformance.demo.processes import DemoError
from adapter.conformance.demo.story import QUICK, Scale, Watcher, play

_INTERRUPTED = 130
_ABOUT = (
    "One story with real servers and engines, each a process of its own, and kill -9 in between. "
    "Exit code 0: every row of the table held; 1: one did not; 2: it could not begin; "
    "130: interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the demo and show its table.

    Args:
        arguments: Command line without the program; None for this process's.

    Returns:
        0 if all held, 1 if not, 2 if it could not begin, 130 if interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m adapter.conformance.demo", description=_ABOUT)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two conversations instead of six, 100 requests of the trace instead of 500",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="where to write all figures; in a checkout build/demo.json unless given",
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    console = report.console()
    watcher = Watcher(
        begins=lambda title: report.bar(console, title),
        ended=lambda outcome: report.say(console, outcome),
        logs=lambda tails: console.print(tails, style="dim", markup=False, highlight=False),
    )
    begun_s = time.monotonic()
    try:
        outcomes = play(QUICK if options.quick else Scale(), watcher)
    except DemoError as error:
        print(f"kvkeep demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvkeep demo: interrupted; everything it started is gone", file=sys.stderr)
        return _INTERRUPTED
    seconds = time.monotonic() - begun_s
    console.print()
    console.print(report.table(outcomes))
    console.print(report.verdict(outcomes, seconds))
    path = options.json or _default_json()
    if path is not None:
        report.write_json(path, report.document(outcomes, seconds, options.quick))
        console.print(f"all figures: {path}", style="dim", highlight=False)
    return 0 if all(outcome.held for outcome in outcomes) else 1


def _default_json() -> Path | None:
    # Only in a checkout of ours: an installed demo writes nothing that nobody asked for.
    here = Path.cwd()
    own = Path(__file__).resolve().parents[3]
    is_checkout = own == here.resolve() and (here / "pyproject.toml").is_file()
    return Path("build") / "demo.json" if is_checkout else None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())

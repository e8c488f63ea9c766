"""``make chaos``: engines under load while everything around them is killed, stopped and dropped.

``python -m tests.chaos [--minutes M] [--seed S] [--json build/chaos.json]``. Prints its seed, a
line a minute and its verdict; docs/chaos.md says what the figures mean. Exit code 0 when the run
counts and everything held, else 1.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server.bench.machine import describe
from tests.chaos.broken import BREAKS
from tests.chaos.conductor import Conductor, Settings
from tests.chaos.script import SCRIPTS, draw, with_tiers
from tests.chaos.verdict import judge

SCHEMA = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs once.

    Args:
        arguments: command line without the program; None for this process's.

    Returns:
        Exit code.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for name in ("minutes", "rate"):
        if not 0 < getattr(options, name) < math.inf:
            parser.error(f"--{name} must be above 0, not {getattr(options, name):g}")
    launcher = ("tests.chaos.broken", options.broken) if options.broken else ("server", "launch")
    script = SCRIPTS[options.script]
    if options.l2:
        script = with_tiers(script)
    settings = Settings(
        seed=options.seed,
        length_s=options.minutes * 60,
        rate=options.rate,
        plant=options.plant,
        launcher=tuple(launcher),
        script=script,
        keep_log=f"{options.json}.server.log" if options.json else "",
        l2=tuple(options.l2),
    )
    events = draw(options.seed, settings.length_s, script)
    print(f"chaos: seed {options.seed}, {options.minutes:g} min, {len(events)} events", flush=True)
    begun, began_s = dt.datetime.now(dt.timezone.utc), time.monotonic()
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    conductor = Conductor(settings, events, lambda line: print(line, flush=True))
    figures = conductor.run()
    verdict = judge(figures, options.minutes, bool(options.l2))
    document = {
        "schema": SCHEMA,
        "begun": begun.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began_s, 1),
        "seed": options.seed,
        "minutes": options.minutes,
        "rate": options.rate,
        "script": options.script,
        "l2": options.l2,
        "planted": options.plant or options.broken,
        "machine": describe(),
        "load_1min_after": round(os.getloadavg()[0], 2),
        **figures,
        "per_minute": conductor.minutes,
        "invalid": list(verdict.invalid),
        "wrong": list(verdict.wrong),
        "held": verdict.held,
    }
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _show(document)
    return 0 if verdict.held else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="how long processes are hit (default %(default)g)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 31),
        help="repeats a run's choices; else one is drawn and printed",
    )
    parser.add_argument("--json", default="", help="where the figures go")
    parser.add_argument(
        "--rate",
        type=float,
        default=60.0,
        help="requests per second and engine at most (default %(default)g)",
    )
    parser.add_argument(
        "--script", choices=SCRIPTS, default="everything", help="what is done (default %(default)s)"
    )
    parser.add_argument(
        "--l2",
        action="append",
        default=[],
        metavar="URL",
        help="a lower tier, as of the server; disk alone is a folder that goes with the run",
    )
    parser.add_argument("--plant", choices=("", "flip"), default="", help="a fault to be found")
    parser.add_argument(
        "--broken", choices=("", *BREAKS), default="", help="a broken server to be found out"
    )
    return parser


def _show(document: dict[str, Any]) -> None:
    lists = ("trouble_list", "leak_list", "hang_list", "longest_calls")
    for name, value in document.items():
        if not isinstance(value, (list, dict)):
            print(f"  {name}: {value}")
    for name in lists:
        if document[name]:
            print(f"  {name}:")
            for one in document[name]:
                what = f"{one}: {document[name][one]}" if name == "leak_list" else one
                print(f"    {what}")
    for reason in document["invalid"]:
        print(f"INVALID: {reason}")
    for reason in document["wrong"]:
        print(f"WRONG: {reason}")
    print(conclusion(document["invalid"], document["wrong"]), flush=True)


def conclusion(invalid: Sequence[str], wrong: Sequence[str]) -> str:
    """The last line: a run that did too little is told apart from one that found something.

    Args:
        invalid: why it does not count.
        wrong: what did not hold.
    """
    if wrong:
        return f"held: no ({len(wrong)} wrong)"
    return "invalid: does not count (nothing was found wrong)" if invalid else "held: yes"


def _end(number: int, _: object) -> None:
    """Ends a run early, through whatever cleans up; a second signal does not cut that short."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main())

"""One step in a process of its own: ``python -m tests.gpu.step NAME GROUND [--quick] [--seed N]``.

Prints the figures as one JSON object, the last line of stdout. Exit code 1 when the step failed: a
wrong byte, memory that stayed behind, something that did not happen. A rate that misses its target
is no failure of the step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tests.gpu.ground import NAMES, ground_for
from tests.slow.figure import Figure

STEPS = {
    "facts": 30.0,
    "roundtrip": 40.0,
    "torture": 45.0,
    "deaths": 50.0,
    "rates": 50.0,
    "hooks": 25.0,
    "pinning": 25.0,
    "footprint": 25.0,
    "ways": 20.0,
    "sanitizer": 30.0,
}
"""Every step, in order, and the longest it may take in seconds; all of them fit into one run."""

NEVER = ("wrong_pages",)
"""Ends of figures' names whose target is a condition and no wish."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one step.

    Returns:
        0 unless something was wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.step", description=__doc__)
    parser.add_argument("name", choices=STEPS)
    parser.add_argument("ground", choices=NAMES)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    module = importlib.import_module(f"tests.gpu.{options.name}")
    further = {"seed": options.seed} if options.name == "torture" else {}
    figures = module.measure(ground_for(options.ground), options.quick, **further)
    if options.ground == "simulated":  # nothing is measured there, so no wish is judged
        figures = {
            name: one if name.endswith(NEVER) else Figure(one.value)
            for name, one in figures.items()
        }
    print(json.dumps({name: asdict(figure) for name, figure in figures.items()}), flush=True)
    broken = [name for name, one in figures.items() if one.met is False and name.endswith(NEVER)]
    for name in broken:
        print(f"{name}: {figures[name].value}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a driver that hangs in its clean-up is no verdict on the step

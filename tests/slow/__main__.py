"""``make slow``: the full counts behind what this project claims, with verdicts, in one file.

``python -m tests.slow [--seed N] [--quick] [--step NAME]… [--record [NAME]]``. Shows each step
while it runs and writes ``build/slow.json`` after each, so that a run that is broken off tells what
it has. ``--record`` copies the file to ``docs/measured/``, named after it and the commit. Exit code
0 when everything ran and every target was met, 130 when a signal ended it, with its step.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from server.bench.machine import describe
from tests.slow.ending import end, interruptible
from tests.slow.figure import Figure
from tests.slow.step import Step
from tests.slow.steps import plan

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = 1
RECORD = "issue7"
"""What a record's name begins with unless another is given."""

EXIT_INTERRUPTED = 130

_SHOW_EVERY_S = 1.0
_TAIL_LINES = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything.

    Args:
        arguments: command line without the program; None for this process's.

    Returns:
        0 if all steps ran and all targets were met, 130 if a signal ended it, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.slow", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, to try the runner")
    parser.add_argument(
        "--record",
        nargs="?",
        const=RECORD,
        metavar="NAME",
        help="copy the file to docs/measured; its name begins with NAME (%(const)s)",
    )
    parser.add_argument("--step", action="append", help="only this one, by name; repeatable")
    options = parser.parse_args(arguments)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "begun": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "seed": options.seed,
        "quick": options.quick,
        "machine": describe(),
        "steps": [],
        "held": None,
    }
    path = build / "slow.json"
    steps = plan(options.seed, build, options.quick)
    if options.step:
        unknown = set(options.step) - {step.name for step in steps}
        if unknown:
            parser.error(f"no step {sorted(unknown)}; there are: {[s.name for s in steps]}")
        steps = [step for step in steps if step.name in options.step]
        document["only"] = options.step
    print(f"seed {options.seed}, {len(steps)} steps, figures go to {path}", flush=True)
    try:
        with interruptible():
            run_steps(steps, document, path)
    except KeyboardInterrupt as signalled:
        print(f"\nended by {signalled}; what ran before is in {path}", flush=True)
        return EXIT_INTERRUPTED
    show(document)
    if options.record:
        record(document, path, options.record)
    return 0 if document["held"] else 1


def run_steps(steps: Sequence[Step], document: dict[str, Any], path: Path) -> None:
    """Runs each, and writes down after each what there is.

    Args:
        steps: in their order.
        document: of the run; gets what they came to.
        path: of its file; what the steps write goes beside it.
    """
    began_s = time.monotonic()
    for number, step in enumerate(steps, start=1):
        ended = run_step(step, f"{number}/{len(steps)} {step.name}", path.parent)
        document["steps"].append(ended)
        document["seconds"] = round(time.monotonic() - began_s, 1)
        document["load_1min_after"] = round(os.getloadavg()[0], 2)
        document["held"] = (
            all(one["held"] for one in document["steps"]) if number == len(steps) else None
        )
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def run_step(step: Step, title: str, build: Path) -> dict[str, Any]:
    """Runs one child process and judges what it left.

    Args:
        step: which.
        title: to show.
        build: for its output.

    Returns:
        JSON-ready: name, exit code, seconds, figures with verdicts, whether it held.
    """
    if step.lacks:
        print(f"{title}: NOT RUN: {step.lacks}", flush=True)
        return _ended(step, None, 0.0, step.lacks, {})
    stem = "".join(c if c.isalnum() else "-" for c in step.name)
    out_path, err_path = build / f"slow-{stem}.out", build / f"slow-{stem}.err"
    began_s = time.monotonic()
    with out_path.open("wb") as out, err_path.open("wb") as err:
        child = subprocess.Popen(
            step.command,
            cwd=ROOT,
            stdout=out,
            stderr=err,
            env=_environ(step),
            start_new_session=True,  # a terminal's Ctrl-C is for the runner, which ends it once
        )
        code = _wait(child, title, began_s, step.limit_s)
    seconds = round(time.monotonic() - began_s, 1)
    stdout = out_path.read_text(encoding="utf-8", errors="replace")
    error, figures = "", dict[str, Figure]()
    try:
        figures = step.read(build, stdout)
    except (OSError, ValueError, LookupError, SyntaxError) as problem:
        error = f"its figures could not be read: {problem!r}"
    ended = _ended(step, code, seconds, error, figures)
    verdict = "held" if ended["held"] else f"FAILED, exit code {code}"
    print(f"\r{title}: {seconds:.0f} s, {verdict}   ")
    if code != 0 or error:
        tail = (stdout + err_path.read_text(encoding="utf-8", errors="replace")).splitlines()
        print("\n".join([error, *tail[-_TAIL_LINES:]]), flush=True)
    return ended


def _environ(step: Step) -> dict[str, str]:
    """Of a step's process: whatever the shell says, nothing is left out here."""
    return {**os.environ, "KV_SAMPLED": "", **step.environ}


def _ended(
    step: Step, code: int | None, seconds: float, error: str, figures: dict[str, Figure]
) -> dict[str, Any]:
    """What a step came to; without an exit code it was not run."""
    held = code == 0 and not error and all(figure.met is not False for figure in figures.values())
    return {
        "name": step.name,
        "command": shlex.join(step.command[1:]).replace(f"{ROOT}{os.sep}", ""),
        "exit_code": code,
        "seconds": seconds,
        "error": error,
        "held": held,
        "figures": {name: asdict(figure) for name, figure in figures.items()},
    }


def _wait(child: subprocess.Popen[bytes], title: str, began_s: float, limit_s: float) -> int:
    """Waits, shows the time, and ends a child that takes too long; one that is left ends, too."""
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_SHOW_EVERY_S)
            taken_s = time.monotonic() - began_s
            if sys.stdout.isatty():
                print(f"\r{title}: {taken_s:.0f} s of at most {limit_s:.0f}", end="", flush=True)
            if taken_s > limit_s:
                print(f"\n{title}: ended after its limit of {limit_s:.0f} s", flush=True)
                return -1
    finally:
        if child.poll() is None:
            end(child)


def show(document: dict[str, Any]) -> None:
    """The verdict, and every target with what was measured."""
    print()
    for step in document["steps"]:
        if step["error"]:
            print(f"  {step['name']}: {step['error']}")
        for name, figure in step["figures"].items():
            if figure["met"] is False or (figure["met"] and step["name"] == "bench"):
                verdict = "met" if figure["met"] else "MISSED"
                value = figure["value"]
                text = f"{value:.4g}" if isinstance(value, float) else str(value)
                print(f"  {step['name']}: {name} = {text} (target {figure['target']}): {verdict}")
    verdict = "all held" if document["held"] else "NOT all held"
    print(f"{verdict} in {document['seconds']:.0f} s (seed {document['seed']})")


def record(
    document: dict[str, Any], path: Path, name: str, folder: Path = ROOT / "docs" / "measured"
) -> None:
    """Keeps a run in the repository, named after the commit it was made on."""
    commit = str(document["machine"]["commit"] or "unknown").replace("+", "-changed")
    part = "-part" if "only" in document else ""
    target = folder / f"{name}-{commit}{part}.json"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, target)
    print(f"kept as {target}")


if __name__ == "__main__":
    raise SystemExit(main())

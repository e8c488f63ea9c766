"""All steps on one GPU, or on the simulated device: ``python -m tests.gpu``; ``run.sh`` calls it.

Each step is a process of its own with a time limit, so that a crash, a hang or a lost device is a
verdict like any other. Writes the JSON after each, so that a run that is broken off tells what it
has. Exit code 0 when every step ran and held; with ``--check`` also every target must be met.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from server.bench.machine import describe
from tests.gpu.facts import DOCTOR_EXIT
from tests.gpu.ground import NAMES
from tests.gpu.step import STEPS

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = 1
LIMIT_S = 340.0
_TAIL_LINES = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything.

    Args:
        arguments: command line without the program; None for this process's.

    Returns:
        0 if all held, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", choices=NAMES, default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--check", action="store_true", help="a missed target is a failure")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="of all steps, seconds")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu.json")
    options = parser.parse_args(arguments)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "begun": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "device": options.device,
        "seed": options.seed,
        "quick": options.quick,
        "machine": describe(),
        "steps": [],
        "held": False,
    }
    print(heading(options.device, options.seed), flush=True)
    end_s = time.monotonic() + options.limit
    for name in (name for name in STEPS if name in options.only):
        left_s = end_s - time.monotonic()
        further = ["--seed", str(options.seed), *(["--quick"] if options.quick else [])]
        ended = run(name, options.device, further, min(STEPS[name], left_s))
        document["steps"].append(ended)
        show(ended)
        is_hopeless = options.device == "cuda" and has_doctor_found_errors(ended)
        held = [one["held"] and (one["met"] or not options.check) for one in document["steps"]]
        document["held"] = all(held) and len(held) == len(options.only)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if is_hopeless:
            print("\ndoctor says that kvkeep does not work here, so no step beyond this one is run")
            break
    print(f"\n{'held' if document['held'] else 'FAILED'}; figures are in {options.json}")
    return 0 if document["held"] else 1


def has_doctor_found_errors(ended: dict[str, Any]) -> bool:
    """Whether it makes no sense to go on: ``facts`` ended, and doctor found what will not work."""
    code = ended["figures"].get(DOCTOR_EXIT, {}).get("value", 0)
    return bool(ended["name"] == "facts" and code)


def heading(device: str, seed: int) -> str:
    """What a reader must know first."""
    if device == "simulated":
        return f"SIMULATED DEVICE: shows that the steps work, measures nothing. seed {seed}"
    return f"seed {seed}"


def run(name: str, device: str, further: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Runs one step.

    Args:
        name: of the step.
        device: ``cuda`` or ``simulated``.
        further: arguments.
        limit_s: longest time; the step and all it started are killed then.

    Returns:
        JSON-ready: name, seconds, exit code, figures, whether it held and met its targets, and the
        end of what it said if not.
    """
    begun_s = time.monotonic()
    ended = {"name": name, "seconds": 0.0, "exit_code": None, "held": False, "met": False}
    if limit_s <= 1.0:
        return {**ended, "figures": {}, "said": ["no time was left for it"]}
    with TemporaryDirectory(prefix="kvk-") as folder:
        environ = {**os.environ}
        if device == "simulated":
            environ["KVKEEP_SIMULATED_CUDA"] = folder
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.step", name, device, *further],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stdout, stderr = _ended(child, limit_s)
    lines = stdout.strip().splitlines()
    figures: dict[str, Any] = {}
    try:
        figures = json.loads(lines[-1]) if lines else {}
    except ValueError:
        pass
    held = child.returncode == 0 and bool(figures)
    ended |= {
        "seconds": round(time.monotonic() - begun_s, 1),
        "exit_code": child.returncode,
        "held": held,
        "met": held and all(one["met"] is not False for one in figures.values()),
    }
    said = [] if held else [*lines[-_TAIL_LINES:], *stderr.strip().splitlines()[-_TAIL_LINES:]]
    return {**ended, "figures": figures, "said": said}


def _ended(child: subprocess.Popen[str], limit_s: float) -> tuple[str, str]:
    """What a child said until its end, or until it was killed with all that it started."""
    try:
        return child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(5.0)
        raise
    try:
        stdout, stderr = child.communicate(timeout=10.0)
    except subprocess.TimeoutExpired:
        return "", f"killed after {limit_s:.0f} s, and it does not end: the driver holds it"
    return stdout, f"{stderr}\nkilled after {limit_s:.0f} s"


def show(ended: dict[str, Any]) -> None:
    """One step of the table."""
    verdict = "held" if ended["held"] else f"FAILED, exit code {ended['exit_code']}"
    print(f"\n{ended['name']}: {verdict} in {ended['seconds']} s")
    width = max((len(name) for name in ended["figures"]), default=0)
    for name, one in ended["figures"].items():
        judged = {True: "met", False: "MISSED", None: ""}[one["met"]]
        target = f"  target {one['target']}: {judged}" if one["target"] else ""
        print(f"  {name:<{min(width, 64)}}  {one['value']}{target}")
    for line in ended["said"]:
        print(f"  | {line}")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())

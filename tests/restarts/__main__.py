"""Kills a server with a full cache again and again, and compares every byte that the next one has.

    python -m tests.restarts [--kills N] [--chunks N] [--seed S] [--json PATH] [--break NAME]

Exit code 1 when a claim of docs/restarts.md does not hold. With ``--break`` the server lacks a
guard, and the run ends with the first wrong page: exit code 0 when one was found. Runs in its own
process.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.restarts.broken import BREAKS
from tests.restarts.run import Plan, Run

MIN_KILLS = 4
MIN_CHUNKS = 4_000
"""The eight newest answers to COMMIT are 1,024 chunks, which are all to be held at a kill: in an
arena for 1,000 they are what is evicted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """One run.

    Args:
        arguments: command line without the program; None for this process's.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.restarts", description="kill and look")
    parser.add_argument(
        "--kills", type=int, default=50, help=f"at least {MIN_KILLS} (default %(default)s)"
    )
    parser.add_argument(
        "--chunks",
        type=int,
        default=100_000,
        help=f"to be held at each, at least {MIN_CHUNKS} (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(1 << 31),
        help="repeats a run's choices; else one is drawn and printed",
    )
    parser.add_argument("--json", type=Path, help="write figures and claims to this file")
    parser.add_argument(
        "--break", dest="broken", choices=sorted(BREAKS), default="", help="lacks a guard"
    )
    options = parser.parse_args(arguments)
    if options.kills < MIN_KILLS or options.chunks < MIN_CHUNKS:
        parser.error(f"a run takes {MIN_KILLS} kills and {MIN_CHUNKS} chunks at least")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the children would stay
    print(f"{options.kills} kills, {options.chunks} chunks, seed {options.seed}", flush=True)
    plan = Plan(
        options.kills,
        options.chunks,
        options.seed,
        options.broken,
        hold_every=2 if options.broken or options.kills < 20 else 10,
        stop_at_wrong=bool(options.broken),
    )
    folder = Path(tempfile.mkdtemp(prefix="kvk-"))
    shared = Path(tempfile.mkdtemp(prefix="kvk-", dir="/dev/shm"))
    try:
        tally = Run(plan, folder, shared / "a", lambda text: print(text, flush=True)).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)
    document = tally.document() | {"broken": options.broken}
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.broken:
        print(f"{tally.found_wrong} wrong pages after {len(tally.kills)} kills")
        return 0 if tally.found_wrong else 1
    for name, value in document.items():
        if name not in ("claims", "each", "troubles"):
            print(f"{name:20} {value}")
    for claim, held in document["claims"].items():
        print(f"{'yes' if held else 'NO '}  {claim}")
    return 0 if document["held"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Many clients at full rate on an arena that is much too small, for as long as one likes.

    python -m tests.soak [--minutes M] [--clients N] [--seed S] [--json PATH]

Prints a line per minute. Exit code 1 when memory or descriptors grow, a loaded byte is wrong, a
request fails, or something is left of the clients when they are gone (docs/soak.md). Runs in its
own process.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.soak.run import soak

MIN_MINUTES = 0.25
"""Shorter ones have too few samples after the warm-up to tell anything."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one soak.

    Args:
        arguments: command line without the program; None for this process's.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="soak a server")
    parser.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        help=f"of work, at least {MIN_MINUTES} (default %(default)g)",
    )
    parser.add_argument("--clients", type=int, default=64, help="at least 1 (default %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(1 << 31),
        help="repeats the clients' choices; else one is drawn and printed",
    )
    parser.add_argument("--json", type=Path, help="write figures and claims to this file")
    options = parser.parse_args(arguments)
    if not MIN_MINUTES <= options.minutes < math.inf or options.clients < 1:
        parser.error(f"a soak takes {MIN_MINUTES} minutes and one client at least")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the server would stay
    print(f"{options.clients} clients for {options.minutes:g} minutes, seed {options.seed}")
    done = soak(
        60 * options.minutes, options.clients, options.seed, lambda text: print(text, flush=True)
    )
    document = done.document()
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(
        f"RssAnon {document['rss_anon_first_mib']} to {document['rss_anon_last_mib']} MiB, "
        f"{document['rss_slope_mib_per_min']} MiB a minute; bursts {document['loop']}"
    )
    for claim, held in document["claims"].items():
        print(f"{'yes' if held else 'NO '}  {claim}")
    return 0 if document["held"] else 1


if __name__ == "__main__":
    sys.exit(main())

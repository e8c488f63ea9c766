"""``bench``: measures what this machine does with kvkeep on it.

Must not know: what is measured, or how. Runs in: the process of the command line.
"""

from __future__ import annotations

import secrets

import click

_NUM_SEEDS = 1 << 31


@click.command(name="bench")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document to stdout.")
@click.option("--quick", is_flag=True, help="Fewer rounds: under a minute.")
@click.option("--check", is_flag=True, help="Exit with 1 when a target is missed.")
@click.option(
    "--seed",
    type=click.IntRange(0, _NUM_SEEDS - 1),
    help="Repeat the orders and tokens of an earlier run.",
)
@click.option("--scrape", is_flag=True, help="Measure what scraping every second changes, only.")
def command(as_json: bool, quick: bool, check: bool, seed: int | None, scrape: bool) -> None:
    """Measure rates, latency and memory on this machine.

    Starts servers of its own on temporary endpoints; one that runs already is left alone, but
    takes its share of the machine.
    """
    from server.bench import session

    chosen = secrets.randbelow(_NUM_SEEDS) if seed is None else seed
    raise SystemExit(session.run(as_json, quick, check, chosen, scrape))

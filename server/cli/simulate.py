"""``simulate``: replays public traces over a model of the cache.

Must not know: how a trace is read or replayed. Runs in: the process of the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

EXIT_CONFIG = 2


@click.command(name="simulate")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--l1",
    default="unlimited",
    metavar="SIZE",
    help="Memory of one node: 200G, 25% of the traces' KV, or unlimited.  [default: unlimited]",
)
@click.option(
    "--l2",
    multiple=True,
    metavar="[disk:|store:]SIZE[,…]",
    help="Lower tiers in order: a disk on each node (what a bare SIZE means), or a store for all.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Machines, each with memory, disks and engines of its own.",
)
@click.option(
    "--route",
    type=click.Choice(["session", "round-robin"]),
    default="session",
    show_default=True,
    help="Which node a request goes to.",
)
@click.option(
    "--copies",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Replay the traces so many times beside each other, each for other users.",
)
@click.option(
    "--policy",
    default="write-through",
    show_default=True,
    metavar="POLICY[,…]",
    help="What tiers are given: write-through, on-evict, after-N-uses or none.",
)
@click.option(
    "--deadline",
    metavar="SECONDS",
    help="Longest wait of a request for lower tiers.  [default: as for launch]",
)
@click.option(
    "--kv-bytes-per-token",
    default="128K",
    show_default=True,
    metavar="SIZE",
    help="Bytes of one token's KV, on all ranks together.",
)
@click.option(
    "--block-tokens",
    type=click.IntRange(1, 1 << 20),
    help="Tokens a hash id stands for.  [default: 512 for .jsonl; as in the file for .json]",
)
@click.option(
    "--chunk-blocks",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Blocks that are kept under one key.",
)
@click.option(
    "--prefill-tokens-s",
    default="3000",
    show_default=True,
    metavar="RATE",
    help="Tokens that an engine computes in a second.",
)
@click.option(
    "--l1-gbps",
    default="10",
    show_default=True,
    metavar="GB/S",
    help="Rate of loads from memory, in GB/s.",
)
@click.option(
    "--read-gbps",
    metavar="GB/S[,…]",
    help="Reads from each tier, GB/s of a node.  [default: disk 3, store 2.5]",
)
@click.option(
    "--write-gbps",
    metavar="GB/S[,…]",
    help="Writes to each tier, GB/s of a node.  [default: disk 2, store 2.5]",
)
@click.option(
    "--one-by-one",
    is_flag=True,
    help="Let each request wait until all reads and writes are done, whatever its time.",
)
@click.option(
    "--count-partial",
    is_flag=True,
    help="Count a prompt's last block even when it is not full, as the traces' authors do.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document to stdout.")
def command(
    traces: tuple[Path, ...],
    l1: str,
    l2: tuple[str, ...],
    nodes: int,
    route: str,
    copies: int,
    policy: str,
    deadline: str | None,
    kv_bytes_per_token: str,
    block_tokens: int | None,
    chunk_blocks: int,
    prefill_tokens_s: str,
    l1_gbps: str,
    read_gbps: str | None,
    write_gbps: str | None,
    one_by_one: bool,
    count_partial: bool,
    as_json: bool,
) -> None:
    """Replay TRACES over a model of this cache, and say what tiers would bring.

    TRACES are Mooncake's .jsonl files, .json sessions of coding agents, or folders of either.
    Needs no server and no GPU; docs/scale.md says what is modelled.
    """
    from protocol.errors import ConfigError
    from server.simulate import replay, report, settings
    from server.simulate import traces as reading

    try:
        chosen = settings.Settings(
            l1=settings.size("l1", l1),
            lower=settings.tiers(l2, policy, read_gbps, write_gbps),
            nodes=nodes,
            route=route,
            copies=copies,
            chunk_blocks=chunk_blocks,
            bytes_per_token=settings.bytes_per_token(kv_bytes_per_token),
            deadline_s=settings.deadline(deadline),
            prefill_tokens_s=settings.number("prefill-tokens-s", prefill_tokens_s),
            l1_gbps=settings.number("l1-gbps", l1_gbps),
            one_by_one=one_by_one,
            count_partial=count_partial,
        )
        trace = reading.read(traces, block_tokens)
        with _progress(len(trace.prompts) * copies) as progress:
            document = replay.run(trace, chosen, progress)
    except ConfigError as error:
        click.echo(f"kvkeep: {error.message}", err=True)
        raise SystemExit(EXIT_CONFIG) from None
    click.echo(json.dumps(document, indent=2) if as_json else report.table(document))


@contextmanager
def _progress(requests: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with click.progressbar(length=requests, label="replaying", file=sys.stderr) as bar:
        yield lambda done: bar.update(done - bar.pos)
        bar.update(requests - bar.pos)

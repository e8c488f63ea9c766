"""``top``: what a running server does, second by second.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from server.cli import reaching

if TYPE_CHECKING:
    from server.asking import Asker
    from server.cli.rates import Moment

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 60.0
MAX_ROWS = 20

Show = Callable[[dict[str, Any]], None]


@click.command(name="top")
@reaching.options
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(MIN_INTERVAL_S, MAX_INTERVAL_S),
    default=1.0,
    show_default=True,
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Show one interval, and end; needs no terminal.")
def command(endpoint: str | None, as_json: bool, interval_s: float, once: bool) -> None:
    """Watch hits, bandwidth, evictions, engines and tiers of a running server.

    With --json it writes one object a line. Ctrl-C ends it. While the server is away it goes on
    looking, except with --once. The exit code is 0, or 1 when no server answers at first.
    """
    from server.cli.rates import Departures

    at = reaching.place(endpoint)
    if not (once or as_json or sys.stdout.isatty()):
        reaching.refuse("top shows itself on a terminal; without one, use --once or --json")
    try:
        if once:
            with reaching.connected(at, "top") as asker:
                first, departures = look(asker), Departures()
                departures.note(first)
                time.sleep(interval_s)
                second = look(asker)
                found = frame(first, second, departures.note(second))
            click.echo(json.dumps(found) if as_json else text(found))
            return
        with reaching.connected(at, "top") as asker:
            look(asker)
        with _lines() if as_json else _screen() as show:
            watch(at, interval_s, show)
    except KeyboardInterrupt:
        return


def watch(at: reaching.Place, interval_s: float, show: Show) -> None:
    """Shows one interval after the other; ends with KeyboardInterrupt only.

    Args:
        at: where the server is.
        interval_s: between two looks.
        show: takes each; ``away`` says why there is none.
    """
    from protocol.errors import KvkeepError
    from server import asking
    from server.cli.rates import Departures

    departures = Departures()
    while True:
        try:
            with asking.connected(at.side_path, reaching.LIMIT_S, "top") as asker:
                before = look(asker)
                departures.note(before)
                while True:
                    time.sleep(interval_s)
                    now = look(asker)
                    show(frame(before, now, departures.note(now)))
                    before = now
        except (KvkeepError, OSError) as error:
            show({"away": f"no answer from {at.url}: {asking.reason(error, at.side_path)}"})
            time.sleep(interval_s)


def look(asker: Asker) -> Moment:
    """One look at the server."""
    from server.cli.rates import Moment

    status = asker.status(reaching.LIMIT_S)
    stats = asker.stats(reaching.LIMIT_S)
    return Moment(time.monotonic(), status, stats, reaching.quotas(asker))


def frame(before: Moment, now: Moment, gone: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """One interval: how the server is, and what happened since the look before.

    Args:
        before: that look.
        now: the one at its end.
        gone: engines that went of late, as ``Departures`` has them.
    """
    from server.cli import overview
    from server.cli.rates import between
    from server.remarks import remarks

    return {
        "time": time.time(),
        "reasons": overview.reasons(now.status, now.stats),
        "remarks": remarks(now.status, now.stats, now.quotas),
        "complaints": overview.complaints(now.stats),
        "server": {
            "endpoint": now.status.server.endpoint,
            "pid": now.status.server.pid,
            "uptime_s": round(now.status.server.uptime_s, 3),
        },
        "l1": overview.l1(now.status, now.stats),
        "hits": overview.hits(now.stats),
        "rates": between(before, now),
        "gone": list(gone),
    }


def text(found: dict[str, Any]) -> str:
    """One interval for people.

    Args:
        found: of ``frame``, or with ``away`` alone.
    """
    if "away" in found:
        return str(found["away"])
    return "\n\n".join(part for part in (_head(found), _engines(found), _tiers(found)) if part)


def _head(found: dict[str, Any]) -> str:
    from server.cli.status import logged, verdict, with_pins
    from server.cli.tables import plain, share, span
    from server.sizes import format_size

    server, l1, hits, rates = found["server"], found["l1"], found["hits"], found["rates"]
    used, whole, seconds = l1["held_bytes"], l1["capacity_bytes"], rates["seconds"]

    def each_second(*names: str) -> str:
        return f"{sum(rates[name] for name in names) / seconds:,.0f}"

    return "\n".join(
        [
            *verdict(
                f"kvkeep at {plain(server['endpoint'])}, pid {server['pid']}, up "
                f"{span(server['uptime_s'])}",
                found,
            ),
            f"L1     {format_size(used)} of {format_size(whole)} ({share(used, whole)}) in "
            f"{l1['chunks']:,} chunks{with_pins(l1)}",
            f"hits   {share(rates['hit_chunks'], rates['requested_chunks'])} of "
            f"{each_second('requested_chunks')} chunks/s; since the start "
            f"{share(hits['hit_chunks'], hits['requested_chunks'])}",
            f"in     {format_size(rates['saved_bytes_s'])}/s, {each_second('saved_chunks')} "
            f"chunks/s saved; {each_second('evicted_chunks', 'reclaimed_chunks')} chunks/s evicted",
            f"out    about {format_size(rates['loaded_bytes_s'])}/s, "
            f"{each_second('loaded_chunks')} chunks/s loaded",
            *logged(found["complaints"]),
        ]
    )


def _engines(found: dict[str, Any]) -> str:
    from server.cli.tables import Column, plain, share, span, table

    seconds = found["rates"]["seconds"]
    rows = [
        [
            plain(one["client"]) or "?",
            str(one["pid"]),
            one["state"],
            span(one["idle_s"]),
            str(one["leases"]),
            f"{one['requested_chunks'] / seconds:,.0f}",
            share(one["hit_chunks"], one["requested_chunks"]),
        ]
        for one in found["rates"]["engines"]
    ]
    lost = [
        [plain(one["client"]) or "?", str(one["pid"]), "gone", span(one["gone_s"]), "", "", ""]
        for one in found["gone"]
    ]
    # Those that are here have half of the rows at least: all may have been started anew.
    most = max(MAX_ROWS // 2, MAX_ROWS - len(rows))
    lost = lost[-most:]
    rows = [*rows[: MAX_ROWS - len(lost)], *lost]
    if not rows:
        return "no engine is connected"
    columns = [Column("engine", can_shrink=True), Column("pid", is_number=True), Column("state")]
    names = ("last heard", "leases", "chunks/s", "hits")
    return table([*columns, *(Column(name, is_number=True) for name in names)], rows)


def _tiers(found: dict[str, Any]) -> str:
    from server.cli.status import tier_state
    from server.cli.tables import Column, share, table
    from server.sizes import format_size

    rows = [
        [
            one["name"],
            tier_state(one),
            share(one["used_bytes"], one["capacity_bytes"]),
            f"{format_size(one['get_bytes_s'])}/s",
            f"{format_size(one['put_bytes_s'])}/s",
            f"{one['hit_chunks']:,}",
            f"{one['errors']:,}",
            f"{one['waiting_puts']:,}",
        ]
        for one in found["rates"]["tiers"]
    ]
    if not rows:
        return ""
    names = ("full", "reads", "writes", "hits", "errors", "to write")
    columns = [Column("tier"), Column("state"), *(Column(name, is_number=True) for name in names)]
    return table(columns, rows)


@contextmanager
def _lines() -> Iterator[Show]:
    def show(found: dict[str, Any]) -> None:
        try:
            print(json.dumps(found), flush=True)
        except BrokenPipeError:  # of stdout: a server that goes while it is greeted raises it, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for its last flush
            raise KeyboardInterrupt from None  # nobody reads any more

    yield show


@contextmanager
def _screen() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(found: dict[str, Any]) -> None:
            shown = Text(text(found), no_wrap=True, overflow="crop")
            wrong = ["down", "breaker open", "no answer", "does not answer"]
            shown.highlight_words(wrong, style="bold red")
            live.update(shown, refresh=True)

        show({"away": "asking the server ..."})
        yield show

"""``retire``: has namespaces forgotten that nobody uses any more.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from server.cli import reaching
from server.wording import counted

if TYPE_CHECKING:
    from protocol.status import NamespaceStatus
    from server.asking import Asker

DEFAULT_SPAN = "7d"


@click.command(name="retire")
@reaching.options
@click.option(
    "--unused-for",
    metavar="TIME",
    default=DEFAULT_SPAN,
    show_default=True,
    help="Longest that a namespace may be unused: seconds, or 30m, 12h, 7d; 366d at most.",
)
@click.option("--dry-run", is_flag=True, help="Only show which they are.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
def command(endpoint: str | None, as_json: bool, unused_for: str, dry_run: bool, yes: bool) -> None:
    """Forget namespaces without engines that were not used for a time, lower tiers included.

    They are what old revisions of models left. Pinned ones stay. A server knows of no use before
    its own start; launch --namespace-ttl does the same by itself. The exit code is 1 when no server
    answers or it refuses, 3 when a tier has not forgotten yet, 130 when the question was not
    answered with yes.
    """
    from protocol.errors import ConfigError
    from server.cli.pin import seconds
    from server.schema import MAX_TTL_S

    at = reaching.place(endpoint)
    try:
        span_s = seconds(unused_for, "unused-for", MAX_TTL_S)
    except ConfigError as error:
        reaching.refuse(str(error))
    if not (yes or dry_run) and (as_json or not sys.stdin.isatty()):
        reaching.refuse("say --yes or --dry-run, since nobody can be asked here")
    with reaching.connected(at, "retire") as asker:
        old = unused(asker.status(reaching.LIMIT_S).namespaces, span_s)
        if old and not (yes or dry_run):
            _confirm(old)
        rows = [_row(one) if dry_run else _retire(asker, one, span_s) for one in old]
    if as_json:
        reaching.show({"unused_for_s": span_s, "dry_run": dry_run, "namespaces": rows})
    else:
        click.echo("\n".join(map(_line, rows)) or "no namespace is unused for so long")
    if any(one.get("tiers_pending") for one in rows):
        raise SystemExit(reaching.EXIT_OTHER)


def unused(known: Iterable[NamespaceStatus], span_s: int) -> list[NamespaceStatus]:
    """Those that are old: without engines and pins, and not used for so long.

    Args:
        known: those the server tells of.
        span_s: seconds.
    """
    return [
        one for one in known if one.idle_s >= span_s and not one.sessions and not one.pinned_chunks
    ]


def _confirm(old: Iterable[NamespaceStatus]) -> None:
    """Asks on the terminal.

    Raises:
        SystemExit: with EXIT_INTERRUPTED, for everything but yes.
    """
    for one in old:
        click.echo(_line(_row(one)))
    if not click.confirm("Forget these, in lower tiers too?", default=False):
        raise SystemExit(reaching.EXIT_INTERRUPTED)


def _retire(asker: Asker, one: NamespaceStatus, span_s: int) -> dict[str, Any]:
    """Clears one, if it still is old: somebody may have come back while it was asked about."""
    from protocol.messages import Clear, ForgottenReply

    still = unused(asker.status(reaching.LIMIT_S).namespaces, span_s)
    if one.fingerprint not in {other.fingerprint for other in still}:
        return {**_row(one), "cleared": None}
    body = Clear(fingerprint=one.fingerprint)
    reply = asker.expect(body, ForgottenReply, reaching.FORGET_LIMIT_S)
    return {**_row(one), "cleared": reply.chunks, "tiers_pending": reply.tiers_pending}


def _row(one: NamespaceStatus) -> dict[str, Any]:
    return {
        "fingerprint": one.fingerprint.hex(),
        "name": one.name,
        "chunks": one.chunks,
        "bytes": one.bytes,
        "idle_s": round(one.idle_s, 3),
    }


def _line(row: dict[str, Any]) -> str:
    from server.cli.tables import plain, span
    from server.sizes import format_size

    text = (
        f"{row['fingerprint']}  {plain(row['name'])}: {counted(row['chunks'], 'chunk')}, "
        f"{format_size(row['bytes'])}, unused for {span(row['idle_s'])}"
    )
    if "cleared" not in row:
        return text
    if row["cleared"] is None:
        return f"{text}: used again, and kept"
    pending = row["tiers_pending"]
    return f"{text}: forgotten" + (
        f", but not yet by {counted(pending, 'tier')}" if pending else ""
    )

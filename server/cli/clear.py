"""``clear``: has one namespace, or everything, forgotten.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from server.cli import prefixes, reaching
from server.cli.tables import unforgotten
from server.wording import counted

if TYPE_CHECKING:
    from protocol.status import NamespaceStatus
    from server.asking import Asker


@click.command(name="clear")
@reaching.options
@prefixes.namespace_option
@click.option("--all", "is_all", is_flag=True, help="Every namespace that the server tells of.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
def command(
    endpoint: str | None, as_json: bool, namespace: str | None, is_all: bool, yes: bool
) -> None:
    """Forget a namespace, or all of them, in L1 and in every lower tier.

    Engines go on, and compute and store anew. A tier that is away is told when it is back, and not
    asked for the namespace before. The exit code is 1 when no server answers or it refuses, 3 when
    a tier has not forgotten yet, 130 when the question was not answered with yes.
    """
    from protocol.errors import ConfigError

    at = reaching.place(endpoint)
    if (namespace is None) != is_all:
        reaching.refuse("say what to clear: either --namespace NAME or --all")
    if not yes and (as_json or not sys.stdin.isatty()):
        reaching.refuse("say --yes, since nobody can be asked here")
    try:
        with reaching.connected(at, "clear") as asker:
            status = asker.status(reaching.LIMIT_S)
            fingerprint = b""
            meant: Sequence[NamespaceStatus] = status.namespaces
            if namespace is not None:
                found = prefixes.find(status.namespaces, namespace)
                meant = [] if found is None else [found]
                fingerprint = bytes.fromhex(namespace) if found is None else found.fingerprint
            if not yes:
                _confirm(meant, at.url)
            document = _clear(asker, fingerprint)
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show(document)
    else:
        click.echo(told(document))
    if document["tiers_pending"]:
        raise SystemExit(reaching.EXIT_OTHER)


def _confirm(meant: Sequence[NamespaceStatus], url: str) -> None:
    """Asks on the terminal.

    Raises:
        SystemExit: with EXIT_INTERRUPTED, for everything but yes.
    """
    from server.cli.tables import plain
    from server.sizes import format_size

    for one in meant:
        size = format_size(one.bytes)
        click.echo(
            f"{one.fingerprint.hex()}  {plain(one.name)}: {counted(one.chunks, 'chunk')}, {size}"
        )
    if not click.confirm(f"Forget this, at {url} and in its lower tiers?", default=False):
        raise SystemExit(reaching.EXIT_INTERRUPTED)


def _clear(asker: Asker, fingerprint: bytes) -> dict[str, Any]:
    """Clears, and looks.

    Returns:
        ``cleared`` chunks, ``chunks_after`` (engines may have stored anew), ``tiers_pending``.
    """
    from protocol.messages import Clear, ForgottenReply

    body = Clear(fingerprint=fingerprint)
    reply = asker.expect(body, ForgottenReply, reaching.FORGET_LIMIT_S)
    left = [
        one.chunks
        for one in asker.status(reaching.LIMIT_S).namespaces
        if fingerprint in (b"", one.fingerprint)
    ]
    return {
        "fingerprint": fingerprint.hex(),
        "cleared": reply.chunks,
        "chunks_after": sum(left),
        "tiers_pending": reply.tiers_pending,
    }


def told(document: dict[str, Any]) -> str:
    """What came of it, for people."""
    after = document["chunks_after"]
    lines = [
        f"cleared {counted(document['cleared'], 'chunk')}; asked again: "
        + (f"{counted(after, 'chunk')}, stored since" if after else "nothing is cached")
    ]
    if document["tiers_pending"]:
        lines.append(
            f"{unforgotten(document['tiers_pending'])}; to be told when that is "
            "possible, and not asked before"
        )
    return "\n".join(lines)

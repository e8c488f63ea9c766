"""``delete``: has prompts forgotten everywhere, and looks afterwards.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from server.cli import prefixes, reaching
from server.cli.inspect import held

if TYPE_CHECKING:
    from server.asking import Asker

_KEY_BYTES = 16


@click.command(name="delete")
@reaching.options
@prefixes.namespace_option
@prefixes.options
@click.option(
    "--from-token",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Keep what lies before this token, for instance a system prompt that others share; the "
    "chunk that it is in goes.  [default: 0, all of the prompt]",
)
def command(
    endpoint: str | None, as_json: bool, namespace: str | None, from_token: int, **named: Any
) -> None:
    """Forget prompts, and everything that continues them, in L1 and in every lower tier.

    --namespace must be given. It asks the server afterwards whether anything of them is still
    found. A tier that is away is told when it is back, and not asked for the namespace before. The
    exit code is 1 when no server answers or it refuses, 3 when a tier has not forgotten yet, or
    something was stored anew meanwhile.
    """
    from protocol.errors import ConfigError

    at = reaching.place(endpoint)
    if namespace is None:
        reaching.refuse("say where to delete from: --namespace NAME")
    try:
        with reaching.connected(at, "delete") as asker:
            known = asker.status(reaching.LIMIT_S).namespaces
            meant = prefixes.resolve(known, namespace, prefixes.Wanted(**named))
            document = _delete(asker, meant, first_chunk(meant, from_token))
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show(document)
    else:
        click.echo(told(document))
    if document["tiers_pending"] or document["found_after"]:
        raise SystemExit(reaching.EXIT_OTHER)


def first_chunk(meant: prefixes.Resolved, from_token: int) -> int:
    """The first chunk that goes.

    Args:
        meant: the prompts.
        from_token: as typed.

    Raises:
        ConfigError: INVALID_CONFIG: a token is named, and nobody knows how many a chunk has.
    """
    from server.sizes import invalid

    if from_token and not meant.chunk_tokens:
        valid = "--tokens with it, since the server does not know how many tokens a chunk has"
        raise invalid("from-token", str(from_token), valid)
    return from_token // meant.chunk_tokens if from_token else 0


def _delete(asker: Asker, meant: prefixes.Resolved, first: int) -> dict[str, Any]:
    """Deletes, and looks.

    Returns:
        ``prompts`` deleted from, ``deleted`` chunks, ``found_after`` of those named, and
        ``tiers_pending``.
    """
    from protocol.messages import Delete, ForgottenReply

    deleted = pending = count = after = 0
    for keys in meant.prefixes:
        going = keys[first * _KEY_BYTES :]
        if not going:
            continue
        count += 1
        body = Delete(fingerprint=meant.fingerprint, keys=going)
        reply = asker.expect(body, ForgottenReply, reaching.FORGET_LIMIT_S)
        deleted += reply.chunks
        pending = max(pending, reply.tiers_pending)
    for keys in meant.prefixes:
        after += max(0, held(asker, meant.fingerprint, keys) - first)
    return {
        "fingerprint": meant.fingerprint.hex(),
        "prompts": count,
        "deleted": deleted,
        "found_after": after,
        "tiers_pending": pending,
    }


def told(document: dict[str, Any]) -> str:
    """What came of it, for people."""
    lines = [
        f"deleted {document['deleted']} chunks of {document['prompts']} prompts from L1, with what "
        "continued them",
        "asked again: nothing of them is found"
        if not document["found_after"]
        else f"asked again: {document['found_after']} chunks are there; they were stored anew",
    ]
    if document["tiers_pending"]:
        lines.append(
            f"{document['tiers_pending']} tiers have not forgotten yet; they are told when they "
            "can be, and not asked before"
        )
    return "\n".join(lines)

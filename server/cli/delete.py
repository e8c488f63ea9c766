"""``delete``: has prompts, or all of a salt, forgotten everywhere, and looks afterwards.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from server.cli import prefixes, reaching
from server.cli.inspect import held
from server.cli.tables import unforgotten
from server.wording import counted

if TYPE_CHECKING:
    from server.asking import Asker

_KEY_BYTES = 16


@click.command(name="delete")
@reaching.options
@prefixes.namespace_option
@prefixes.options
@click.option(
    "--tenant",
    metavar="salt/DIGITS",
    help="Instead of prompts: all that was stored under the salt of that digest, as kvkeep quota "
    "list shows it.",
)
@click.option(
    "--from-token",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Keep what lies before this token, for instance a system prompt that others share; the "
    "chunk that it is in goes.  [default: 0, all of the prompt]",
)
def command(
    endpoint: str | None,
    as_json: bool,
    namespace: str | None,
    from_token: int,
    tenant: str | None,
    **named: Any,
) -> None:
    """Forget prompts, and everything that continues them, in L1 and in every lower tier.

    --namespace must be given with prompts. With --salt alone, or --tenant, all that was stored
    under that salt goes, in every namespace. It asks the server afterwards whether anything of
    them is still found. A tier that is away is told when it is back, and not asked for the
    namespace before. The exit code is 1 when no server answers or it refuses, 3 when a tier has not
    forgotten yet or cannot tell whose its values are, or something was stored anew meanwhile.
    """
    from protocol.errors import ConfigError

    at = reaching.place(endpoint)
    wanted = prefixes.Wanted(**named)
    is_of_salt = wanted.salt is not None and namespace is None and not wanted.is_any
    if tenant is not None or is_of_salt:
        _delete_salt(at, as_json, _digest(wanted, namespace, tenant, from_token))
        return
    if namespace is None:
        reaching.refuse(
            "say where to delete from: --namespace NAME; or, for all of one tenant, nothing but "
            "--salt TEXT, --salt-file FILE or --tenant NAME"
        )
    try:
        with reaching.connected(at, "delete") as asker:
            known = asker.status(reaching.LIMIT_S).namespaces
            meant = prefixes.resolve(known, namespace, wanted)
            document = _delete(asker, meant, first_chunk(meant, from_token))
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show(document)
    else:
        click.echo(told(document))
    if document["tiers_pending"] or document["found_after"]:
        raise SystemExit(reaching.EXIT_OTHER)


def _digest(
    wanted: prefixes.Wanted, namespace: str | None, tenant: str | None, from_token: int
) -> bytes:
    """The digest of the salt that is meant.

    Raises:
        SystemExit: with EXIT_CONFIG, after one line.
    """
    from protocol.keys import ReuseScope
    from protocol.quotas import TenantKind
    from server.quotaspec import parse_tenant

    if tenant is None:
        if from_token:
            reaching.refuse("--from-token goes with prompts: --tokens FILE, or --key HEX")
        return ReuseScope(cache_salt=wanted.salt).tenant()
    if wanted.is_any or wanted.salt is not None or namespace is not None or from_token:
        reaching.refuse("--tenant stands alone: all that was stored under its salt goes")
    kind, digest = parse_tenant(tenant) or (TenantKind.NAMESPACE, b"")
    if kind is not TenantKind.SALT:
        reaching.refuse(
            f"tenant={tenant!r}: expected salt/ and 32 hex digits; a namespace goes with kvkeep "
            "clear"
        )
    return digest


def _delete_salt(at: reaching.Place, as_json: bool, digest: bytes) -> None:
    """Deletes all of a salt, looks, and tells.

    Raises:
        SystemExit: with EXIT_OTHER where something is left, or may be.
    """
    with reaching.connected(at, "delete") as asker:
        document = _of_salt(asker, digest)
    if as_json:
        reaching.show(document)
    else:
        click.echo(told_of_salt(document))
    if document["tiers_pending"] or document["tiers_unknown"] or document["found_after"]:
        raise SystemExit(reaching.EXIT_OTHER)


def _of_salt(asker: Asker, digest: bytes) -> dict[str, Any]:
    """Asks until nothing is left to delete, and then once more.

    Returns:
        ``deleted`` chunks of L1; ``tier_values`` deleted by tier, and ``at_least``: whether there
        may have been more of these; ``tiers_unknown``, and ``tiers_away``: why some of them cannot
        be asked, by name; ``tiers_pending``; and ``found_after`` in L1 and tiers together.
    """
    from protocol.messages import DeleteSalt, DeleteSaltReply
    from protocol.quotas import TenantKind
    from server.quotaspec import tenant_name

    deleted, values, unknown, is_least = 0, dict[str, int](), set[str](), False
    while True:
        body = DeleteSalt(tenant=digest)
        reply = asker.expect(body, DeleteSaltReply, reaching.FORGET_LIMIT_S)
        deleted += reply.chunks
        for name, number in reply.tier_values.items():
            values[name] = values.get(name, 0) + number
        unknown.update(reply.tiers_unknown)
        is_least = is_least or reply.more
        # What a tier has not forgotten, or cannot be told now, it would name again, and again.
        has_gone = reply.chunks or any(reply.tier_values.values())
        if not reply.more or reply.tiers_pending or not has_gone:
            break
    look = asker.expect(
        DeleteSalt(tenant=digest, look=True), DeleteSaltReply, reaching.FORGET_LIMIT_S
    )
    unknown.update(
        look.tiers_unknown
    )  # one that could be asked before, and not now, proves nothing
    return {
        "tenant": tenant_name(TenantKind.SALT, digest),
        "deleted": deleted,
        "tier_values": values,
        "at_least": is_least,
        "tiers_unknown": sorted(unknown),
        "tiers_away": _away(asker, unknown),
        "tiers_pending": reply.tiers_pending,
        "found_after": look.chunks + sum(look.tier_values.values()),
    }


def _away(asker: Asker, names: set[str]) -> dict[str, str]:
    """Why some tiers cannot be asked now, by name: those of them that are not up."""
    if not names:
        return {}
    tiers = asker.status(reaching.LIMIT_S).tiers
    return {
        tier.name: tier.why or tier.state
        for tier in tiers
        if tier.name in names and tier.state != "up"
    }


def told_of_salt(document: dict[str, Any]) -> str:
    """What came of it, for people."""
    most = "at least " if document["at_least"] else ""
    after, away = document["found_after"], document["tiers_away"]
    values, pending = document["tier_values"], document["tiers_pending"]
    lines = [f"deleted {counted(document['deleted'], 'chunk')} from L1"]
    lines += [
        f"deleted {most}{counted(number, 'value')} from {name}"
        for name, number in sorted(values.items())
    ]
    for name in document["tiers_unknown"]:
        why = "cannot tell whose its values are, or not in time"
        if name in away:
            why = f"cannot be asked now ({away[name]})"
        lines.append(f"{name} {why}: of it goes what the others named")
    lines.append(
        f"asked again: {counted(after, 'is', 'are')} there, stored anew or not forgotten yet"
        if after
        else "asked again: nothing of it is found"
    )
    if pending:
        has = "it has" if pending == 1 else "they have"
        lines.append(f"{unforgotten(pending)}: what {has} is not counted above; ask again later")
    if not (document["deleted"] or any(values.values()) or after or pending):
        lines.append(
            f"nothing was found of {document['tenant']}: is that the salt, exactly as requests "
            "have it?"
        )
    return "\n".join(lines)


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
        f"deleted {counted(document['deleted'], 'chunk')} of "
        f"{counted(document['prompts'], 'prompt')} from L1, with what continued them",
        "asked again: nothing of them is found"
        if not document["found_after"]
        else f"asked again: {counted(document['found_after'], 'chunk is', 'chunks are')} there, "
        "stored anew",
    ]
    if document["tiers_pending"]:
        lines.append(
            f"{unforgotten(document['tiers_pending'])}; to be told when that is "
            "possible, and not asked before"
        )
    return "\n".join(lines)

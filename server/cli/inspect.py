"""``inspect``: what a running server holds, by namespace or of given prompts.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from server.cli import prefixes, reaching
from server.cli.hottest import hottest_text, of_hottest
from server.wording import counted

if TYPE_CHECKING:
    from protocol.messages import InspectReply, StatusReply
    from protocol.status import NamespaceStatus
    from server.asking import Asker


@click.command(name="inspect")
@reaching.options
@prefixes.namespace_option
@prefixes.options
@click.option("--hottest", is_flag=True, help="Show which prefixes are found most of late.")
def command(
    endpoint: str | None, as_json: bool, namespace: str | None, hottest: bool, **named: Any
) -> None:
    """Show what is cached: the namespaces, one of them, or how much of some prompts.

    Without --tokens and --key it lists namespaces. With one of these it says of each prompt how
    many of its chunks are in L1, from the start on, and how many each lower tier says it has.
    With --hottest it lists what prompts that were found most of late begin with. Nothing is
    touched: it does not count as a use. The exit code is 1 when no server answers, 3 when some
    of what was named is not in L1.
    """
    from protocol.errors import ConfigError

    wanted = prefixes.Wanted(**named)
    if hottest and wanted.is_any:
        reaching.refuse("--hottest goes without --tokens and --key")
    at = reaching.place(endpoint)
    try:
        with reaching.connected(at, "inspect") as asker:
            status = asker.status(reaching.LIMIT_S)
            if wanted.is_any:
                document = of_prompts(asker, status, namespace, wanted)
            elif hottest:
                document = hot(status, namespace)
            else:
                document = of_namespaces(status, namespace)
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show(document)
    elif hottest:
        click.echo(hottest_text(document))
    else:
        click.echo(prompts_text(document) if wanted.is_any else namespaces_text(document))
    if not document["is_whole"]:
        raise SystemExit(reaching.EXIT_OTHER)


def hot(status: StatusReply, namespace: str | None) -> dict[str, Any]:
    """The hot prefixes of all namespaces, or of one.

    Args:
        status: of the server.
        namespace: as typed, or None for all.

    Returns:
        ``prefixes``, and ``is_whole``: whether the namespace that was named is there.

    Raises:
        ConfigError: INVALID_CONFIG: none is called so.
    """
    if namespace is None:
        return {**of_hottest(status, None), "is_whole": True}
    found = prefixes.find(status.namespaces, namespace)
    rows = {"prefixes": []} if found is None else of_hottest(status, found.fingerprint)
    return {**rows, "is_whole": found is not None}


def of_namespaces(status: StatusReply, namespace: str | None) -> dict[str, Any]:
    """All namespaces, or one.

    Args:
        status: of the server.
        namespace: as typed, or None for all.

    Returns:
        ``namespaces``, each with its facts; ``left_out``, how many more there are; ``is_whole``,
        whether the one that was named is there.

    Raises:
        ConfigError: INVALID_CONFIG: none is called so.
    """
    shown = list(status.namespaces)
    if namespace is not None:
        found = prefixes.find(shown, namespace)
        shown = [] if found is None else [found]
    return {
        "namespaces": [row(one) for one in shown],
        "left_out": 0 if namespace is not None else status.namespaces_more,
        "is_whole": namespace is None or bool(shown),
    }


def row(one: NamespaceStatus) -> dict[str, Any]:
    """A namespace for programs."""
    return {
        "fingerprint": one.fingerprint.hex(),
        "name": one.name,
        "ranks": one.ranks,
        "shards": one.shards,
        "chunk_tokens": one.chunk_tokens,
        "chunk_blocks": one.chunk_blocks,
        "sessions": one.sessions,
        "chunks": one.chunks,
        "bytes": one.bytes,
        "pinned_chunks": one.pinned_chunks,
        "idle_s": round(one.idle_s, 3),
    }


def of_prompts(
    asker: Asker, status: StatusReply, namespace: str | None, wanted: prefixes.Wanted
) -> dict[str, Any]:
    """How much of each prompt is in L1.

    Args:
        asker: connected.
        status: of the server.
        namespace: as typed, or None for the only one.
        wanted: the prompts.

    Returns:
        ``fingerprint``, ``chunk_tokens`` (0 for unknown), ``prompts`` with ``chunks``, ``held``
        and ``tiers`` each (by name, what a tier says it has; None for one that did not say), and
        ``is_whole``: whether all of them are in L1.

    Raises:
        ConfigError: INVALID_CONFIG: no such namespace, or no such prompts.
    """
    meant = prefixes.resolve(status.namespaces, namespace, wanted)
    names, rows = [one.name for one in status.tiers], []
    for keys in meant.prefixes:
        found = there(asker, meant.fingerprint, keys, with_tiers=bool(names))
        tiers = {name: found.tiers.get(name) for name in names}
        rows.append({"chunks": len(keys) // 16, "held": found.chunks, "tiers": tiers})
    return {
        "fingerprint": meant.fingerprint.hex(),
        "chunk_tokens": meant.chunk_tokens,
        "prompts": rows,
        "is_whole": all(one["held"] == one["chunks"] for one in rows),
    }


def held(asker: Asker, fingerprint: bytes, keys: bytes) -> int:
    """Leading chunks of a prefix that are in L1; arguments as for ``there``."""
    return there(asker, fingerprint, keys).chunks


def there(asker: Asker, fingerprint: bytes, keys: bytes, with_tiers: bool = False) -> InspectReply:
    """What is there of a prefix; nothing of a namespace that is not known.

    Args:
        asker: connected.
        fingerprint: of the namespace.
        keys: 16 bytes each.
        with_tiers: whether lower tiers are asked, too.
    """
    from protocol.errors import ErrorCode, KvkeepError
    from protocol.messages import Inspect, InspectReply

    body = Inspect(fingerprint=fingerprint, keys=keys, tiers=with_tiers)
    try:
        return asker.expect(body, InspectReply, reaching.LIMIT_S)
    except KvkeepError as error:
        if error.code != ErrorCode.UNKNOWN_NAMESPACE:
            raise
        return InspectReply(chunks=0)


def prompts_text(document: dict[str, Any]) -> str:
    """What ``of_prompts`` found, for people."""
    lines = []
    tokens = document["chunk_tokens"]
    for number, one in enumerate(document["prompts"], start=1):
        of_tokens = f" ({one['held'] * tokens:,} tokens)" if tokens else ""
        below = "".join(f"; {said(*tier)}" for tier in one["tiers"].items())
        whole = counted(one["chunks"], "chunk")
        line = f"prompt {number}: {one['held']:,} of {whole} in L1{of_tokens}{below}"
        lines.append(line)
    return "\n".join(lines)


def namespaces_text(document: dict[str, Any]) -> str:
    """What ``of_namespaces`` found, for people."""
    from server.cli.tables import FINGERPRINT_SHOWN, Column, plain, span, table
    from server.sizes import format_size

    rows = [
        [
            one["fingerprint"][:FINGERPRINT_SHOWN],
            plain(one["name"]),
            f"{one['chunks']:,}",
            format_size(one["bytes"]),
            f"{one['chunks'] * one['chunk_tokens']:,}",
            f"{one['pinned_chunks']:,}",
            str(one["sessions"]),
            span(one["idle_s"]),
        ]
        for one in document["namespaces"]
    ]
    if not rows:
        return "nothing is cached: no namespace has content or engines"
    columns = [
        Column("namespace"),
        Column("model", can_shrink=True),
        *(Column(name, is_number=True) for name in ("chunks", "bytes", "tokens", "pinned")),
        Column("ranks", is_number=True),
        Column("unused for", is_number=True),
    ]
    more = f"\n... and {document['left_out']} more" if document["left_out"] else ""
    return table(columns, rows) + more


def said(name: str, chunks: int | None) -> str:
    """What a tier says, for people.

    Args:
        name: of the tier.
        chunks: leading ones that it has; None where it did not say.
    """
    return f"{name} cannot be asked now" if chunks is None else f"{name} says it has {chunks}"

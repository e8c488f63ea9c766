"""What ``inspect --hottest`` says: the prefixes that LOOKUPs find most of late.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.messages import StatusReply


def of_hottest(status: StatusReply, fingerprint: bytes | None) -> dict[str, Any]:
    """The hot prefixes, those of all namespaces or of one.

    Args:
        status: of the server.
        fingerprint: of the namespace; None for all.

    Returns:
        ``prefixes``, the hottest first.
    """
    names = {space.fingerprint: space for space in status.namespaces}
    rows = []
    for one in status.prefixes:
        if fingerprint not in (None, one.fingerprint):
            continue
        space = names.get(one.fingerprint)
        rows.append(
            {
                "head": one.head.hex(),
                "fingerprint": one.fingerprint.hex(),
                "name": space.name if space is not None else "",
                "chunks": one.chunks,
                "tokens": one.chunks * space.chunk_tokens if space is not None else 0,
                "hits": one.hits,
                "idle_s": round(one.idle_s, 3),
            }
        )
    return {"prefixes": rows}


def hottest_text(document: dict[str, Any]) -> str:
    """The same for people."""
    from server.cli.tables import FINGERPRINT_SHOWN, Column, plain, span, table

    rows = [
        [
            one["head"],
            one["fingerprint"][:FINGERPRINT_SHOWN],
            plain(one["name"]),
            f"{one['hits']:,}",
            f"{one['chunks']:,}",
            f"{one['tokens']:,}",
            span(one["idle_s"]),
        ]
        for one in document["prefixes"]
    ]
    if not rows:
        return "nothing that is in L1 was found of late"
    columns = [
        Column("begins with"),
        Column("namespace"),
        Column("model", can_shrink=True),
        *(Column(name, is_number=True) for name in ("hits", "chunks", "tokens", "unused for")),
    ]
    return table(columns, rows)

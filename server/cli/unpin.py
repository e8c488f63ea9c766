"""``unpin``: takes back what ``pin`` did.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from server.cli import prefixes, reaching
from server.wording import counted

if TYPE_CHECKING:
    from server.asking import Asker


@click.command(name="unpin")
@reaching.options
@prefixes.namespace_option
@prefixes.options
def command(endpoint: str | None, as_json: bool, namespace: str | None, **named: Any) -> None:
    """Let prompts that were pinned be evicted again.

    Name the same prompts as for pin. What is not pinned is no error. The exit code is 1 when no
    server answers or it refuses.
    """
    from protocol.errors import ConfigError

    at = reaching.place(endpoint)
    try:
        with reaching.connected(at, "unpin") as asker:
            known = asker.status(reaching.LIMIT_S).namespaces
            meant = prefixes.resolve(known, namespace, prefixes.Wanted(**named))
            rows = [
                {"chunks": len(keys) // 16, "unpinned": _unpin(asker, meant.fingerprint, keys)}
                for keys in meant.prefixes
            ]
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show({"fingerprint": meant.fingerprint.hex(), "prompts": rows})
        return
    for number, one in enumerate(rows, start=1):
        number_of = counted(one["unpinned"], "chunk is", "chunks are")
        click.echo(f"prompt {number}: {number_of} no longer pinned")


def _unpin(asker: Asker, fingerprint: bytes, keys: bytes) -> int:
    from protocol.messages import ChunkCountReply, Unpin

    body = Unpin(fingerprint=fingerprint, keys=keys)
    return asker.expect(body, ChunkCountReply, reaching.LIMIT_S).chunks

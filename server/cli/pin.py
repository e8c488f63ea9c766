"""``pin``: bars the eviction of prompts for a time.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from protocol.limits import MAX_TTL_S
from server.cli import prefixes, reaching
from server.wording import counted

if TYPE_CHECKING:
    from server.asking import Asker

DEFAULT_TTL = "1h"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"([0-9]{1,9})([smhd]?)")


@click.command(name="pin")
@reaching.options
@prefixes.namespace_option
@prefixes.options
@click.option(
    "--ttl",
    metavar="TIME",
    default=DEFAULT_TTL,
    show_default=True,
    help="For how long: seconds, or 30m, 12h, 7d; 30d at most.",
)
def command(
    endpoint: str | None, as_json: bool, namespace: str | None, ttl: str, **named: Any
) -> None:
    """Keep prompts in L1: their chunks are not evicted until the time is over.

    What is pinned of a prompt is what L1 has of it, from its start on. Pinning the same prompt
    again sets the time anew. The exit code is 1 when no server answers or it refuses, 3 when some
    prompt was not there as a whole.
    """
    from protocol.errors import ConfigError

    at = reaching.place(endpoint)
    try:
        ttl_s = seconds(ttl)
        with reaching.connected(at, "pin") as asker:
            known = asker.status(reaching.LIMIT_S).namespaces
            meant = prefixes.resolve(known, namespace, prefixes.Wanted(**named))
            rows = [
                {"chunks": len(keys) // 16, "pinned": _pin(asker, meant.fingerprint, keys, ttl_s)}
                for keys in meant.prefixes
            ]
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show({"fingerprint": meant.fingerprint.hex(), "ttl_s": ttl_s, "prompts": rows})
    else:
        for number, one in enumerate(rows, start=1):
            click.echo(
                f"prompt {number}: {one['pinned']:,} of {counted(one['chunks'], 'chunk')} pinned"
            )
    if any(one["pinned"] < one["chunks"] for one in rows):
        raise SystemExit(reaching.EXIT_OTHER)


def _pin(asker: Asker, fingerprint: bytes, keys: bytes, ttl_s: int) -> int:
    from protocol.messages import ChunkCountReply, Pin

    body = Pin(fingerprint=fingerprint, keys=keys, ttl_s=ttl_s)
    return asker.expect(body, ChunkCountReply, reaching.LIMIT_S).chunks


def seconds(text: str, option: str = "ttl", most_s: int = MAX_TTL_S) -> int:
    """Reads a span of time.

    Args:
        text: seconds, or a number with s, m, h or d.
        option: that it is the value of, for the error.
        most_s: longest, seconds; as long as a PIN may be without it.

    Raises:
        ConfigError: INVALID_CONFIG: it is none, or too long.
    """
    from server.sizes import invalid

    match = _SPAN.fullmatch(text.strip().lower())
    found = int(match[1]) * _UNITS[match[2]] if match is not None else 0
    if not 1 <= found <= most_s:
        raise invalid(option, text, f"seconds, or 30m, 12h, 7d; {most_s // 86_400}d at most")
    return found

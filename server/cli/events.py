"""``events``: which chunks L1 holds, and then which it comes to hold or holds no more.

Must not know: how a server is asked, or in which order. Runs in: the process of the command line.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from server.cli import reaching

if TYPE_CHECKING:
    from protocol.errors import KvkeepError
    from server.asking import Asker
    from server.eventstream import Told

WAIT_MS = 10_000
"""How long the server is asked to wait for news."""

AWAY_S = 1.0
"""Between two looks for a server that went."""

Show = Callable[[dict[str, Any]], None]


@click.command(name="events")
@reaching.options
@click.option("--new", "only_new", is_flag=True, help="Only what happens, not what is held now.")
@click.option("--once", is_flag=True, help="End when all that is held now was told.")
def command(endpoint: str | None, as_json: bool, only_new: bool, once: bool) -> None:
    """Follow which chunks come into L1 and go, as a cache-aware router does.

    First everything that L1 holds, then each change. With --json it writes one object a line.
    Ctrl-C ends it. While the server is away it goes on looking, except with --once. The exit code
    is 0, or 1 when no server answers at first, or one refuses, as an old one that has no events.
    """
    at = reaching.place(endpoint)
    show = _line if as_json else _text
    try:
        with reaching.connected(at, "events") as asker:
            if once:
                follow(asker, not only_new, once, show)
                return
        _go_on(at, not only_new, show)
    except KeyboardInterrupt:
        return


def _go_on(at: reaching.Place, with_pages: bool, show: Show) -> NoReturn:
    from protocol.errors import KvkeepError
    from server import asking

    while True:
        try:
            with asking.connected(at.side_path, reaching.LIMIT_S, "events") as asker:
                follow(asker, with_pages, False, show)
        except (KvkeepError, OSError) as error:
            if isinstance(error, KvkeepError) and _is_final(error):
                reaching.fail(f"refused by {at.url}: {error}")
            reason = f"no answer from {at.url}: {asking.reason(error, at.side_path)}"
            show({"event": "away", "reason": reason})
            time.sleep(AWAY_S)


def _is_final(error: KvkeepError) -> bool:
    """Whether a server says no, and would say so again: the same is not asked for ever."""
    from protocol.errors import REJOIN, ErrorCode, ReplyError, RequestError

    is_no = isinstance(error, ReplyError | RequestError) and error.code not in REJOIN
    # From BUSY on it is the server's state that is to blame, and that changes.
    return is_no and not error.retryable and error.code < ErrorCode.BUSY


def follow(asker: Asker, with_pages: bool, once: bool, show: Show) -> None:
    """Shows all that one server tells; returns with ``once`` only, when nothing is left.

    Args:
        asker: connected.
        with_pages: what is held first.
        once: do not wait for news.
        show: takes each.

    Raises:
        OSError: nobody answers in time, or the server ends.
        KvkeepError: the server refuses.
        KeyboardInterrupt: nobody reads what is shown any more.
    """
    from server.eventstream import EventReader

    reader = EventReader(0 if once else WAIT_MS, with_pages)
    while not (once and reader.is_current):
        reply = asker.ask(reader.ask(), reaching.LIMIT_S + WAIT_MS / 1000)
        for told in reader.take(reply):
            show(row(told))
        _end_unread()


def row(told: Told) -> dict[str, Any]:
    """What a reader is told as plain values, with keys in hex.

    Args:
        told: one thing.
    """
    from protocol.events import CLEARED, STORED, KvEvent
    from protocol.ids import ID_BYTES
    from server.eventstream import Begun, Page

    if isinstance(told, Begun):
        return {"event": "begin", "cursor": told.cursor}
    if isinstance(told, Page):
        chunks = [{"key": key.hex(), "parent": parent.hex()} for key, parent in told.chunks]
        return {"event": "held", "fingerprint": told.fingerprint.hex(), "chunks": chunks}
    if not isinstance(told, KvEvent):
        return {"event": "current"}
    found: dict[str, Any] = {"event": told.kind, "fingerprint": told.fingerprint.hex()}
    if told.kind != CLEARED:
        blob = told.keys
        found["keys"] = [blob[at : at + ID_BYTES].hex() for at in range(0, len(blob), ID_BYTES)]
    if told.kind == STORED:
        found["parent"] = told.parent.hex()
    return found


def text(found: dict[str, Any]) -> str:
    """One line for people.

    Args:
        found: of ``row``, or with ``away``.
    """
    kind, name = found["event"], found.get("fingerprint", "")[:8]
    if kind == "away":
        return str(found["reason"])
    if kind == "begin":
        return f"begin    at event {found['cursor']:,}"
    if kind == "current":
        return "current  that was all; what follows happens now"
    if kind == "held":
        return f"held     {name}  {_count(found['chunks'])}"
    if kind == "cleared":
        return f"cleared  {name}"
    keys = found["keys"]
    after = f" after {found['parent'][:8]}" if found.get("parent") else ""
    return f"{kind:<8} {name}  {_count(keys)}{after}: {keys[0][:8]}{' ...' * (len(keys) > 1)}"


def _count(chunks: list[Any]) -> str:
    return f"{len(chunks):,} chunk{'s' * (len(chunks) != 1)}"


def _line(found: dict[str, Any]) -> None:
    _write(json.dumps(found))


def _text(found: dict[str, Any]) -> None:
    _write(text(found))


def _write(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for its last flush
        raise KeyboardInterrupt from None  # nobody reads any more


def _end_unread() -> None:
    """Ends it when stdout is a pipe that nobody reads any more, without a line to find that out.

    Raises:
        KeyboardInterrupt: nobody does.
    """
    try:
        stdout = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return  # closed, or none that could be looked at
    poller = select.poll()
    poller.register(stdout, 0)  # POLLERR and POLLHUP come unasked
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0)):
        raise KeyboardInterrupt

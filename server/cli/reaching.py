"""What every command that asks a running server shares: its options, its exit codes, its errors.

Must not know: what is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from protocol.quotas import QuotaRow
    from server.asking import Asker

EXIT_OK = 0
EXIT_FAILED = 1
"""No server, or it refused, or ended meanwhile."""

EXIT_CONFIG = 2
"""An option that makes no sense."""

EXIT_OTHER = 3
"""It was done, and something is not as one would wish: each command says what that is."""

EXIT_INTERRUPTED = 130

LIMIT_S = 5.0
"""Longest wait for one answer. CLEAR and DELETE wait for lower tiers, at most as long."""

FORGET_LIMIT_S = 15.0


@dataclass(frozen=True)
class Place:
    """Where a server is.

    Attributes:
        url: its endpoint.
        side_path: of its side socket.
    """

    url: str
    side_path: str


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--endpoint`` (or ``--server``) and ``--json``, which each such command has.

    Args:
        command: takes ``endpoint`` and ``as_json``.
    """
    command = click.option(
        "--json", "as_json", is_flag=True, help="Write one JSON object to stdout."
    )(command)
    return click.option(
        "--endpoint",
        "--server",
        "endpoint",
        metavar="URL",
        help="The server's endpoint, as its start-up line names it.  [default: as for launch]",
    )(command)


def place(endpoint: str | None) -> Place:
    """Where the server is: as typed, else where ``launch`` would listen.

    No other setting is checked: who asks how a server is may have the environment of something
    else, and files in it that only others may read.

    Args:
        endpoint: as typed, or None.

    Raises:
        SystemExit: with EXIT_CONFIG, after one line.
    """
    from protocol.errors import ConfigError
    from server import config
    from server.gathering import COMMAND_LINE, Gathered, Given, gather

    try:
        if endpoint is not None:
            found = {"endpoint": Given(endpoint, COMMAND_LINE)}
        else:
            values = gather({}, os.environ).values
            found = {key: given for key, given in values.items() if key == "endpoint"}
        settings = config.parse(Gathered(found), os.environ)
    except ConfigError as error:
        refuse(str(error))
    return Place(settings.endpoint.url, settings.endpoint.side_path(settings.runtime_dir))


@contextmanager
def connected(at: Place, command: str) -> Iterator[Asker]:
    """A connection to a server.

    Args:
        at: where it is.
        command: what asks, for the server's log.

    Raises:
        SystemExit: with EXIT_FAILED, after one line: nobody answers, then or later, or the server
            refuses.
    """
    from protocol.errors import ConfigError, KvkeepError, ReplyError
    from server import asking

    try:
        with asking.connected(at.side_path, LIMIT_S, command) as asker:
            yield asker
    except ConfigError:
        raise  # of an option that was looked at meanwhile: no fault of the server's
    except ReplyError as error:
        fail(f"refused by {at.url}: {error}")
    except TimeoutError as error:
        why = asking.reason(error, at.side_path)
        fail(f"no answer from {at.url}: {why}; kvkeep doctor says more")
    except (KvkeepError, OSError) as error:
        fail(f"no answer from {at.url}: {asking.reason(error, at.side_path)}")


def quotas(asker: Asker) -> tuple[QuotaRow, ...]:
    """Tenants' quotas, without changing any."""
    from protocol.messages import Quotas, QuotasReply

    return asker.expect(Quotas(), QuotasReply, LIMIT_S).quotas


def refuse(line: str) -> NoReturn:
    """Ends the command for an option that makes no sense.

    Args:
        line: what is wrong, and what is valid.
    """
    click.echo(f"kvkeep: {line}", err=True)
    raise SystemExit(EXIT_CONFIG)


def fail(line: str) -> NoReturn:
    """Ends the command that could not do its work.

    Args:
        line: why.
    """
    click.echo(f"kvkeep: {line}", err=True)
    raise SystemExit(EXIT_FAILED)


def show(document: Mapping[str, Any]) -> None:
    """Writes one JSON object to stdout.

    Args:
        document: of plain values.
    """
    click.echo(json.dumps(document, indent=2))

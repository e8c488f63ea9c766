"""A cache salt as people give it: on the command line, or where no process list shows it.

Must not know: what it is for. Runs in: the process of the command line.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from server.cli import reaching

MAX_SALT_BYTES = 65_536

_EMPTY = (
    "an empty salt is none: requests with one count as such without a salt. Leave the option out"
)


def salt_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--salt`` and ``--salt-file``, both of them as ``salt``, None without either.

    Args:
        what: the help of ``--salt``.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def reading(*args: Any, salt: str | None, salt_file: str | None, **named: Any) -> Any:
            return command(*args, salt=salt_of(salt, salt_file), **named)

        with_file = click.option(
            "--salt-file",
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            help="Instead of --salt, which the process list shows: a file with the salt in one "
            "line, or - for stdin.",
        )(reading)
        return click.option("--salt", metavar="TEXT", help=what)(with_file)

    return decorated


def salt_of(salt: str | None, path: str | None) -> str | None:
    """The salt that somebody means.

    Args:
        salt: as typed, or None.
        path: of a file with it, ``-`` for stdin, or None.

    Raises:
        SystemExit: with EXIT_CONFIG, after one line: both, an empty one, or no such file.
    """
    if salt is not None and path is not None:
        reaching.refuse("either --salt TEXT or --salt-file FILE")
    if path is not None:
        salt = _read(path)
    if salt == "":
        reaching.refuse(f"salt='': {_EMPTY}")
    return salt


def _read(path: str) -> str:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_SALT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_SALT_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reaching.refuse(f"salt-file={path!r}: expected a line of text that can be read: {error}")
    line = text.removesuffix("\n").removesuffix("\r")
    if "\n" in line or len(data) > MAX_SALT_BYTES:
        reaching.refuse(f"salt-file={path!r}: expected one line, of at most {MAX_SALT_BYTES} bytes")
    return line

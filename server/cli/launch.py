"""``launch``: runs the cache server of this node in the foreground.

Must not know: how a server is built, what a setting means (its options are ``server.schema``'s).
Runs in: the server's main process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from server.schema import SETTINGS

EXIT_CONFIG = 2


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each setting of the server.

    Args:
        command: takes them by name; None, or an empty tuple, for what was not given.

    Returns:
        The command with them, as a decorator has it.
    """
    for setting in reversed(tuple(SETTINGS.values())):
        command = click.option(
            f"--{setting.key}",
            metavar=setting.metavar,
            multiple=setting.is_repeated,
            hidden=not setting.is_shown,
            help=setting.help,
        )(command)
    return command


def lmcache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags of LMCache's server that are understood; the help does not show them."""
    for flag, metavar in (
        ("--max-workers", "N"),
        ("--eviction-policy", "NAME"),
        ("--l1-size-gb", "GB"),
        ("--chunk-size", "N"),
        ("--port", "PORT"),
        ("--host", "HOST"),
    ):
        command = click.option(flag, metavar=metavar, hidden=True)(command)
    return command


def by_key(options: dict[str, Any]) -> tuple[dict[str, str | None], list[str]]:
    """What was typed, in the words of ``config.read``.

    Args:
        options: as click passes them; changed: those of LMCache are taken out.

    Returns:
        Texts by key, None for what was not given; a line for each flag without a counterpart.

    Raises:
        ConfigError: INVALID_CONFIG: one setting by two names, or a host that is not this one.
    """
    from server import lmcachenames
    from server.sizes import invalid

    foreign = {flag: options.pop(flag.replace("-", "_")) for flag in lmcachenames.FLAGS}
    named: dict[str, str | None] = {}
    for key, setting in SETTINGS.items():
        value = options[key.replace("-", "_")]
        named[key] = (" ".join(value) if value else None) if setting.is_repeated else value
    values, notes = lmcachenames.of_flags(foreign)
    for key, text in values.items():
        if named[key] is not None:
            raise invalid(key, str(named[key]), f"one of this and {text}, which other flags say")
        named[key] = text
    return named, notes


@click.command(name="launch")
@settings_options
@lmcache_options
def command(**options: Any) -> None:
    """Run the server in the foreground until SIGTERM or Ctrl-C.

    It prints one line when engines can connect, and one that names the pages once they are
    served. Each option can also be given in the
    environment, as KVKEEP_ENDPOINT, KVKEEP_L1_SIZE and so on. The command line comes first, then
    the environment, then the file of --config. Sizes are in bytes, or in powers of 1024.
    """
    # Read by numerics when they are first imported, below; the server has no use for threads
    # of theirs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from protocol.errors import ConfigError
    from server import app, config, gathering, tierspec

    try:
        gathering.refuse_unknown(os.environ)
        tierspec.joined(options["l2"])
        named, notes = by_key(options)
        gathered = gathering.gather(named, os.environ)
        for note in (*notes, *gathered.notes):
            click.echo(f"kvkeep: {note}", err=True)
        app.launch(config.parse(gathered, os.environ))
    except ConfigError as error:
        click.echo(f"kvkeep: {error}", err=True)
        raise SystemExit(EXIT_CONFIG) from None

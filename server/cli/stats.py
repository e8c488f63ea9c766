"""``stats``: shows the counters of the server that runs on this node.

Must not know: what the counters mean, or how a server is asked. Runs in: the process of the
command line.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from server.cli import reaching


@click.command(name="stats")
@reaching.options
def command(endpoint: str | None, as_json: bool) -> None:
    """Show the counters of a running server.

    Without --endpoint it looks where launch would listen: KVKEEP_ENDPOINT, else this user's
    default. The exit code is 1 when no server answers there.
    """
    at = reaching.place(endpoint)
    with reaching.connected(at, "stats") as asker:
        values = asker.stats(reaching.LIMIT_S)
    if as_json:
        reaching.show(values)
    else:
        click.echo(table(values))


def table(values: Mapping[str, int]) -> str:
    """Counters for people, one a line.

    Args:
        values: counter name to value.

    Returns:
        Names and values in two columns.
    """
    width = max(map(len, values), default=0)
    digits = max((len(f"{value:,}") for value in values.values()), default=0)
    return "\n".join(f"{name:<{width}}  {value:>{digits},}" for name, value in values.items())

"""``stats``: shows the counters of the server that runs on this node.

Must not know: what the counters mean, or how a server is asked. Runs in: the process of the
command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import click

EXIT_UNREACHABLE = 1
EXIT_CONFIG = 2
LIMIT_S = 5.0


@click.command(name="stats")
@click.option(
    "--endpoint",
    metavar="URL",
    help="The server's endpoint, as its start-up line names it.  [default: as for launch]",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object to stdout.")
def command(endpoint: str | None, as_json: bool) -> None:
    """Show the counters of a running server.

    Without --endpoint it looks where launch would listen: KVKEEP_ENDPOINT, else this user's
    default. The exit code is 1 when no server answers there.
    """
    from protocol.errors import ConfigError, KvkeepError
    from server import asking, config

    try:
        settings = config.read({"endpoint": endpoint}, os.environ)
    except ConfigError as error:
        click.echo(f"kvkeep: {error}", err=True)
        raise SystemExit(EXIT_CONFIG) from None
    side_path = settings.endpoint.side_path(settings.runtime_dir)
    try:
        values = asking.stats(side_path, LIMIT_S)
    except (KvkeepError, OSError) as error:
        why = asking.reason(error, side_path)
        click.echo(f"kvkeep: no answer from {settings.endpoint.url}: {why}", err=True)
        raise SystemExit(EXIT_UNREACHABLE) from None
    click.echo(json.dumps(values, indent=2) if as_json else table(values))


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

"""``launch``: runs the cache server of this node in the foreground.

Must not know: how a server is built. Runs in: the server's main process.
"""

from __future__ import annotations

import os

import click

EXIT_CONFIG = 2


@click.command(name="launch")
@click.option("--endpoint", metavar="URL", help="Where engines connect: ipc:///path or tcp.")
@click.option("--l1-size", metavar="SIZE", help="Memory for the cache, such as 20G.")
@click.option("--arena-dir", metavar="PATH", help="Folder of the cache; in shared memory.")
@click.option("--extent-size", metavar="SIZE", help="Length of one file of the cache.")
@click.option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR, on stderr.")
@click.option("--cgroup-root", metavar="PATH", hidden=True)
def command(**options: str | None) -> None:
    """Run the server until SIGTERM.

    Each option can also be given in the environment, as KVKEEP_ENDPOINT, KVKEEP_L1_SIZE and so
    on. Sensible defaults: an endpoint private to this user, half of the free memory.
    """
    # Read by numerics when they are first imported, below; the server has no use for threads
    # of theirs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from protocol.errors import ConfigError
    from server import app, config

    try:
        named = {name.replace("_", "-"): value for name, value in options.items()}
        app.launch(config.read(named, os.environ))
    except ConfigError as error:
        click.echo(f"kvkeep: {error}", err=True)
        raise SystemExit(EXIT_CONFIG) from None

"""``launch``: runs the cache server of this node in the foreground.

Must not know: how a server is built. Runs in: the server's main process.
"""

from __future__ import annotations

import os

import click

EXIT_CONFIG = 2


@click.command(name="launch")
@click.option(
    "--endpoint",
    metavar="URL",
    help="Where engines connect: ipc:///absolute/path, or tcp://localhost:PORT.  "
    "[default: kvkeep.sock in a folder of this user's own]",
)
@click.option(
    "--l1-size",
    metavar="SIZE",
    help="Memory for the cache: bytes, or 512M, 20G, 1.5T; 1M to 16T.  "
    "[default: half of what is free]",
)
@click.option(
    "--arena-dir",
    metavar="PATH",
    help="Folder for the cache's files, absolute, on a tmpfs.  [default: one in /dev/shm]",
)
@click.option(
    "--arena-at-exit",
    metavar="WHAT",
    help="keep: the next server takes the cache over.  remove: the memory is free at once.  "
    "[default: keep]",
)
@click.option(
    "--extent-size",
    metavar="SIZE",
    help="Length of one of these files: 64K to 1G, a multiple of 4096 bytes.  "
    "[default: a sixteenth of the cache, 64M to 1G]",
)
@click.option(
    "--l2",
    metavar="URL",
    multiple=True,
    help="A tier below the cache, asked in the order given: disk:/path?size=200G, "
    "mooncake://master:50051, valkey://host:6379 or s3://bucket/prefix. Its options follow a "
    "question mark; docs/operations.md lists them.  [default: none]",
)
@click.option(
    "--promote-deadline",
    metavar="SECONDS",
    help="Longest that a request waits for bytes of lower tiers, 0.01 to 3600.  [default: 1]",
)
@click.option(
    "--group",
    metavar="NAME",
    help="Group whose members may connect as well, by name or number.  [default: this user alone]",
)
@click.option(
    "--log-level",
    metavar="LEVEL",
    help="DEBUG, INFO, WARNING or ERROR; the log goes to stderr.  [default: WARNING]",
)
@click.option(
    "--config",
    metavar="PATH",
    help="File with more of these options, absolute: a line  l1-size = 20G  for each.",
)
@click.option("--incomplete-timeout", metavar="SECONDS", hidden=True)
@click.option("--cgroup-root", metavar="PATH", hidden=True)
def command(l2: tuple[str, ...], **options: str | None) -> None:
    """Run the server in the foreground until SIGTERM or Ctrl-C.

    It prints one line when engines can connect. Each option can also be given in the
    environment, as KVKEEP_ENDPOINT, KVKEEP_L1_SIZE and so on. The command line comes first, then
    the environment, then the file of --config.
    """
    # Read by numerics when they are first imported, below; the server has no use for threads
    # of theirs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from protocol.errors import ConfigError
    from server import app, config, tierspec

    for name in config.unknown_variables(os.environ):
        click.echo(f"kvkeep: {name} in the environment is no setting of the server", err=True)
    try:
        named = {name.replace("_", "-"): value for name, value in options.items()}
        named["l2"] = tierspec.joined(l2)
        app.launch(config.read(named, os.environ))
    except ConfigError as error:
        click.echo(f"kvkeep: {error}", err=True)
        raise SystemExit(EXIT_CONFIG) from None

"""``python -m server`` and the console script ``kvkeep``: one group, one module per command.

Each command imports what it runs only when it runs, so ``--help`` and ``launch`` stay quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from protocol import __version__
from server.cli import examples

#: Command name to the module that defines it as ``command``. A further command is one line here.
COMMANDS: Mapping[str, str] = {
    "bench": "server.cli.bench",
    "clear": "server.cli.clear",
    "config": "server.cli.config",
    "delete": "server.cli.delete",
    "doctor": "server.cli.doctor",
    "events": "server.cli.events",
    "inspect": "server.cli.inspect",
    "launch": "server.cli.launch",
    "pin": "server.cli.pin",
    "quota": "server.cli.quota",
    "retire": "server.cli.retire",
    "simulate": "server.cli.simulate",
    "stats": "server.cli.stats",
    "status": "server.cli.status",
    "top": "server.cli.top",
    "unpin": "server.cli.unpin",
    "warm": "server.cli.warm",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        command.short_help = examples.SUMMARIES[cmd_name]
        command.epilog = examples.epilog(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuses a command that is none with the one that was most likely meant."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from server.schema import nearest

        meant = nearest(name, COMMANDS)
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(sorted(COMMANDS))}."
        raise click.UsageError(f"No such command {name!r}: {hint}", ctx)


@click.group(cls=LazyGroup, epilog=examples.epilog())
@click.version_option(__version__, prog_name="kvkeep", message="%(prog)s %(version)s")
def cli() -> None:
    """One warm KV cache per node, owned by its own process."""

"""``python -m server``: see ``server.cli``."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script ``kvkeep``: the exit code says how a command ended.

    0 done, 2 a wrong option or setting (a line on stderr names it), 130 Ctrl-C before the command
    could end by itself.
    """
    try:
        import click  # here, so that Ctrl-C while it is read makes no traceback

        from server.cli import cli

        try:
            sys.exit(cli.main(prog_name="kvkeep", standalone_mode=False))
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()

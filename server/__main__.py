"""``python -m server``: see ``server.cli``."""

from __future__ import annotations

from server.cli import cli


def main() -> None:
    """Entry point of the console script ``kvkeep``."""
    cli(prog_name="kvkeep")


if __name__ == "__main__":
    main()

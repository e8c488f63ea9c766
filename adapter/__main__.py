"""``python -m adapter conformance``: the one command of this package.

Must not know: what the command does. Runs in the process's main thread.
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Hands on to the command.

    Args:
        arguments: of the command line.

    Returns:
        The process's exit code.
    """
    if not arguments or arguments[0] != "conformance":
        print("usage: python -m adapter conformance [--help]", file=sys.stderr)
        return 2
    # Needs torch, which an engine's process need not have imported for the rest of this package.
    from adapter.conformance.kit.command import main as conformance

    return conformance(arguments[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""``python -m adapter conformance``: the one command of this package.

Must not know: what the command does. Runs in the process's main thread.
"""

from __future__ import annotations

import sys
from typing import Final

_INTERRUPTED: Final = 130
USAGE: Final = """\
usage: python -m adapter conformance [--help]

  conformance  hold a KV connector, kvkeep's own or another, to TensorRT-LLM's interface

Beside it, each a module of its own with --help:

  python -m adapter.conformance.demo       kvkeep at work, to look at
  python -m adapter.conformance.agentic    agents that take turns: hits and bytes, counted
  python -m adapter.conformance.schedules  random schedules for kvkeep's connector, in any number
"""


def main(arguments: list[str]) -> int:
    """Hands on to the command.

    Args:
        arguments: of the command line.

    Returns:
        The process's exit code: the command's, 0 for help, 2 for another command or none, 130
        when Ctrl-C came before the command began.
    """
    if arguments and arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if not arguments or arguments[0] != "conformance":
        print(USAGE, end="", file=sys.stderr)
        return 2
    try:
        # Needs torch, which an engine's process need not have imported for this package.
        from adapter.conformance.kit.command import main as conformance
    except KeyboardInterrupt:
        print("conformance: ended by SIGINT", file=sys.stderr)
        return _INTERRUPTED
    return conformance(arguments[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

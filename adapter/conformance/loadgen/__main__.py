"""``python -m adapter.conformance.loadgen``: orders in on stdin, results out on stdout.

With the arguments ``echo ENDPOINT`` it is the bare echo instead. Ends when stdin does.
"""

from __future__ import annotations

import sys

from adapter.conformance.loadgen import echo
from adapter.conformance.loadgen.service import Service


def main(arguments: list[str]) -> int:
    """Runs one of the two.

    Args:
        arguments: of the command line.

    Returns:
        Exit code.
    """
    if len(arguments) == 2 and arguments[0] == "echo":
        echo.serve(arguments[1])
        return 0
    if arguments:
        sys.stderr.write("usage: python -m adapter.conformance.loadgen [echo ENDPOINT]\n")
        return 2
    Service(0, sys.stdout.buffer).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

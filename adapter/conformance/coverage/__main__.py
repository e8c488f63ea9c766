"""``python -m adapter.conformance.coverage [--write FILE]``: the page, shown or written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from adapter.conformance.coverage.document import render


def main(arguments: list[str]) -> int:
    """Shows or writes the page.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m adapter.conformance.coverage")
    parser.add_argument("--write", type=Path, help="file to write; shown otherwise")
    options = parser.parse_args(arguments)
    if options.write is None:
        sys.stdout.write(render())
    else:
        options.write.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

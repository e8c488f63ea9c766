"""Print what pyproject.toml asks for, one requirement a line.

Without a word: ``name==lowest``. With ``names``: what the torch-free tests need. With another word:
the optional list of that name; ``none`` is an empty one. Reads the lists by a plain pattern, since
tomllib came with Python 3.11 only.
"""

import re
import sys
from pathlib import Path

TEXT = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")


def requirements(key: str) -> list[str]:
    """List the requirements of one array of pyproject.toml, such as ``dependencies``."""
    found = re.search(rf"^{key} = \[(.*?)\]$", TEXT, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"pyproject.toml has no list {key!r}")
    return re.findall(r'"([^"]+)"', found.group(1))


def main() -> None:
    """Print the list that was asked for."""
    if sys.argv[1:] == ["names"]:
        lines = requirements("dependencies") + requirements("test")
    elif sys.argv[1:]:
        lines = [] if sys.argv[1] == "none" else requirements(sys.argv[1])
    else:
        lines = [line.replace(">=", "==") for line in requirements("dependencies")]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


main()

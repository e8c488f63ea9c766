"""What the repository's own tests look at: its files, without those that a run makes.

Knows the tree only, imports nothing of kvkeep. Runs in the pytest process.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("adapter", "protocol", "server")
MADE = {"build", "dist", "node_modules", "__pycache__"}


def files(*under: str, suffix: str = "") -> Iterator[Path]:
    """Yield the repository's files, sorted, as paths relative to its root.

    Args:
        under: Folders to look in; the whole repository when none is named.
        suffix: What the names must end with.
    """
    for start in under or (".",):
        for folder, folders, names in os.walk(ROOT / start):
            folders[:] = sorted(
                name
                for name in folders
                if name not in MADE
                and not name.endswith(".egg-info")
                and (not name.startswith(".") or name == ".ci")
            )
            for name in sorted(names):
                path = (Path(folder) / name).relative_to(ROOT)
                if name.endswith(suffix) and not name.endswith((".pyc", ".so")):
                    yield path


def text(path: Path | str) -> str:
    """Read one file of the repository; bytes that are not UTF-8 become marks."""
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def array(key: str) -> list[str]:
    """Read one array of strings from pyproject.toml (tomllib came with Python 3.11 only)."""
    found = re.search(rf"^{re.escape(key)} = \[(.*?)\]$", text("pyproject.toml"), re.M | re.S)
    assert found is not None, f"pyproject.toml has no array {key!r}"
    return re.findall(r'"([^"]+)"', found.group(1))

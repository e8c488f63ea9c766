"""What the pages of docs/ name in rows and sentences: code, and commands among it.

Knows Markdown as these pages use it. Runs in the pytest process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)


def codes(page: str) -> list[str]:
    """List what stands between backticks outside of blocks, each once."""
    return sorted(set(re.findall(r"`([^`\n]+)`", FENCE.sub("", page))))


def inline_commands(page: str) -> Iterator[list[str]]:
    """Yield the words behind ``kvkeep`` of each command between backticks."""
    for code in codes(page):
        if code.startswith("kvkeep "):
            yield shlex.split(code)[1:]

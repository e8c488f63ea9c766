"""What the pages of docs/ name: commands in console blocks, code in rows and sentences.

Knows Markdown as these pages use it. Runs in the pytest process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words behind ``kvkeep`` of each command in a page's console blocks."""
    for block in re.findall(r"^ *```console\n(.*?)^ *```", page, re.M | re.S):
        for line in re.findall(r"^ *\$ (.*)$", block, re.M):
            program, *words = shlex.split(line.removesuffix(" &"))
            assert program == "kvkeep", line
            yield words


def codes(page: str) -> list[str]:
    """List what stands between backticks outside of blocks, each once."""
    return sorted(set(re.findall(r"`([^`\n]+)`", FENCE.sub("", page))))


def inline_commands(page: str) -> Iterator[list[str]]:
    """Yield the words behind ``kvkeep`` of each command between backticks."""
    for code in codes(page):
        if code.startswith("kvkeep "):
            yield shlex.split(code)[1:]

"""The commands that the documents show: of each page, each line of each block of commands.

Knows Markdown as these pages use it, and which blocks show something else. Runs in the pytest
process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.repository import tree

SHELL = ("", "console", "sh", "bash")
#: First words of lines in blocks that show something else than commands.
NO_COMMANDS = (
    r"FOUND|again:|kvkeep ready:|warmed |[0-9a-f]{20,}|scrape_configs:|M = |user kvkeep "
    r"|FLEET=|ANY=|CODING="
)
_HERE = re.compile(r"<<(\w+)\n.*?^\1$", re.M | re.S)


def blocks(page: str) -> Iterator[str]:
    """Yield the text of each block of commands, without its indentation, on whole lines."""
    for indent, language, text in re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", page, re.M | re.S):
        if language in SHELL and not re.match(rf" *(?:{NO_COMMANDS})", text):
            yield re.sub(r"\s*\\\n\s*", " ", re.sub(rf"^{indent}", "", text, flags=re.M))


def command_lines(page: str) -> Iterator[str]:
    """Yield each command of a page's blocks, without its prompt, comment and description.

    One that reads the lines after it (``<<END``) comes with them.
    """
    for block in blocks(page):
        heres = [found.group(0) for found in _HERE.finditer(block)]
        for line in _HERE.sub("<<", block).splitlines():
            line = re.sub(r"(?<=\S)\s{2,}\S.*$", "", re.sub(r"\s#\s.*$", "", line))
            line = line.strip().removeprefix("$ ").removesuffix(" &")
            if line.endswith("<<"):
                line = line.removesuffix("<<") + heres.pop(0)
            if line and not re.match(NO_COMMANDS, line):
                yield from line.split(" && ")


@cache
def every() -> dict[str, tuple[str, ...]]:
    """The commands of each page that has some, in order; one that is shown twice stands twice."""
    found = {}
    for path in tree.files(suffix=".md"):
        if path.parts[0] in ("docs", "README.md", "deploy"):
            lines = tuple(command_lines(tree.text(path)))
            if lines:
                found[str(path)] = lines
    return found

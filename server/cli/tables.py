"""Tables, spans of time and shares for people, the same in every command.

Must not know: what is shown. Runs in: the process of the command line.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from server.wording import counted

MIN_WIDTH, PIPED_WIDTH = 40, 160
_GAP = 3
_SPARE = 2  # rich before 14.3 pads the first and the last column at the edges, too
_MIN_SHRUNK = 8
FINGERPRINT_SHOWN = 12
"""Digits of a fingerprint in a table; the commands take the beginning of one, too."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        title: above it.
        is_number: whether it is set to the right.
        can_shrink: whether what does not fit is cut; the others are shown whole.
    """

    title: str
    is_number: bool = False
    can_shrink: bool = False


def unforgotten(count: int) -> str:
    """What a deletion says of lower tiers that still have what was deleted.

    Args:
        count: of them.
    """
    return f"{counted(count, 'tier has', 'tiers have')} not forgotten yet"


def width() -> int:
    """Columns of the terminal; of a pipe or a file, enough for everything."""
    import shutil

    if not sys.stdout.isatty():
        return PIPED_WIDTH
    return max(MIN_WIDTH, shutil.get_terminal_size().columns)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], columns_wide: int = 0) -> str:
    """A table without lines but one.

    Args:
        columns: of it.
        rows: a text for each column.
        columns_wide: how wide it may be; 0 for the terminal's width.

    Returns:
        Lines, without spaces at their ends.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    wide = columns_wide or width()
    longest = [
        max(len(text) for text in (column.title, *(row[at] for row in rows)))
        for at, column in enumerate(columns)
    ]
    whole = sum(size for size, one in zip(longest, columns, strict=True) if not one.can_shrink)
    left = wide - whole - _GAP * (len(columns) - 1) - _SPARE
    for size, column in zip(longest, columns, strict=True):
        made.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            # Left to itself it takes from every column alike.
            min_width=None if column.can_shrink else size,
            max_width=max(_MIN_SHRUNK, left) if column.can_shrink else None,
        )
    for row in rows:
        made.add_row(*map(Text, row))  # nothing in it is markup
    file = io.StringIO()
    Console(file=file, width=wide, color_system=None).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").split("\n"))


def span(seconds: float) -> str:
    """A span of time in its two largest units, such as ``3h 12m``."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def share(part: float, whole: float) -> str:
    """A share in percent, or a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def plain(text: str) -> str:
    """A text of somebody else's, with nothing in it that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)

"""Numbers of things, in words that fit one of them, too.

Must not know: what is counted. Runs in: any process, whichever thread has something to say.
"""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """A number with what it counts, such as ``1 chunk`` or ``4,810 chunks``.

    Args:
        number: of them.
        one: the words for one of them.
        several: for any other number; empty for the same with an ``s``.
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"

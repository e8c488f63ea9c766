"""What is remembered of a value over restarts.

Must not know: where it is kept. Runs in: the porter.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Of one value.

    Attributes:
        segment: number of the segment that it is in.
        slot: in that segment.
        uses: how often it was used.
        stamp: the catalog's clock at its last use.
        salt: digest of the salt under which it was stored first, or empty.
    """

    segment: int
    slot: int
    uses: int
    stamp: int
    salt: bytes = b""

"""What a ledger's rows become by what was noted of the store meanwhile.

Must not know: files, locks. Runs in: the porter; the ledger's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server.tiers.ledger.rows import Row

Taken = tuple[Mapping[bytes, int], Mapping[bytes, int], Mapping[bytes, int]]
"""See ``Notes.take``."""


def settle(
    row_of: Callable[[bytes], Row | None],
    is_flying: Callable[[bytes], bool],
    taken: Taken,
    young: int,
) -> dict[bytes, Row | None]:
    """Rows that change.

    Args:
        row_of: as they are.
        is_flying: whether a write of a value is under way: then nobody knows how it will end.
        taken: what was noted.
        young: of a row whose last use is no further back no later one is entered.

    Returns:
        New rows by name; None for what is gone.
    """
    ended, used, gone = taken
    changes: dict[bytes, Row | None] = {}

    def now(name: bytes) -> Row | None:
        return changes[name] if name in changes else row_of(name)

    for name, at in ended.items():
        row = now(name)
        # Not of a write before the one that is under way, or ended as nobody knows.
        if row is not None and at > row.stamp and not is_flying(name):
            changes[name] = row._replace(ended=at)
    for name, at in used.items():
        row = now(name)
        if row is not None and at > row.stamp + young:
            changes[name] = row._replace(stamp=at)
    for name, at in gone.items():
        row = now(name)
        # The store was asked after the last write had ended, and that is known.
        if row is not None and 0 < row.ended <= at and not is_flying(name):
            changes[name] = None
    return changes

"""Which node has which key, in many small dicts instead of one.

Purpose: a dict that doubles moves all of its entries at once, 9 ms for 170,000; here a key's first
byte chooses one of 64, so that what moves at a time is some thousand entries at most. More of them
would be slower to look up: their heads would not stay in the cache. Must not know: nodes' content.
Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.ids import ID_BYTES
from server.core.admission import MORE, WALK_BLOCKS, Steps

NUM_TABLES = 64
_ABSENT = -1


class KeyTable:
    """Keys to node numbers.

    Attributes:
        tables: the dict of the keys that begin with each byte, for callers in a hurry; every dict
            stands there four times.
        count: keys in all of them.
    """

    __slots__ = ("count", "tables")

    def __init__(self) -> None:
        tables: list[dict[bytes, int]] = [{} for _ in range(NUM_TABLES)]
        self.tables = tables * (256 // NUM_TABLES)
        self.count = 0

    def __len__(self) -> int:
        """Keys in the table."""
        return self.count

    def find(self, key: bytes) -> int:
        """The node of a key, or -1."""
        return self.tables[key[0]].get(key, _ABSENT)

    def find_all(self, keys: list[bytes]) -> list[int]:
        """The node of each key, or -1."""
        tables = self.tables
        return [tables[key[0]].get(key, _ABSENT) for key in keys]

    def add_all(self, keys: list[bytes], nodes: list[int]) -> None:
        """Enters keys that are not in the table.

        Args:
            keys: each once.
            nodes: of each key.
        """
        tables = self.tables
        for key, node in zip(keys, nodes, strict=True):
            tables[key[0]][key] = node
        self.count += len(keys)

    def remove(self, key: bytes) -> None:
        """Takes a key out; KeyError when it is not there."""
        del self.tables[key[0]][key]
        self.count -= 1

    def remove_all(self, keys: bytes) -> None:
        """Takes keys out.

        Args:
            keys: 16 bytes each, all in the table.
        """
        tables = self.tables
        for at in range(0, len(keys), ID_BYTES):
            key = keys[at : at + ID_BYTES]
            del tables[key[0]][key]
        self.count -= len(keys) // ID_BYTES

    def items(self) -> list[tuple[bytes, int]]:
        """Every key with its node, for checks and tests."""
        return [item for table in self.tables[:NUM_TABLES] for item in table.items()]

    def empty(self) -> Steps:
        """Takes everything out, in slices."""
        for table in self.tables:
            while table:
                for _ in range(min(WALK_BLOCKS, len(table))):
                    table.popitem()
                    self.count -= 1
                yield MORE

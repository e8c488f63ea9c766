"""What the writers know to be committed, and what was on its way when a server was killed.

Reads their log as it grows. Knows nothing of servers. Runs in the conductor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.restarts.content import CHAIN_CHUNKS, LOG_DTYPE, as_bytes, keys_of

FRESH_ANSWERS = 8
"""Newest answers to COMMIT, whose chunks must be there after a kill whatever the records say."""


@dataclass
class Ledger:
    """Chains by space.

    Attributes:
        path: of the log.
        chains: committed chunks of each chain, in the order of the answers; 0 for one whose
            COMMIT was not answered.
        last: the rows of the newest answers, at most a few, as (space, chain, chunks).
    """

    path: Path
    chains: dict[int, dict[int, int]] = field(default_factory=dict)
    last: list[tuple[int, int, int]] = field(default_factory=list)
    _read_bytes: int = 0

    def catch_up(self, keep: int = FRESH_ANSWERS) -> None:
        """Reads what was answered since; only rows of this time become ``last``."""
        with open(self.path, "rb") as file:
            file.seek(self._read_bytes)
            blob = file.read()
        blob = blob[: len(blob) // LOG_DTYPE.itemsize * LOG_DTYPE.itemsize]
        self._read_bytes += len(blob)
        rows = np.frombuffer(blob, LOG_DTYPE)
        told = [(int(row["space"]), int(row["chain"]), int(row["count"])) for row in rows]
        for space, chain, count in told:
            self.chains.setdefault(space, {})[chain] = count
        self.last = told[-keep:]

    def note_flying(self, space: int, chains: Iterable[int]) -> list[bytes]:
        """Notes chains without an answer; returns their keys."""
        mine, keys = self.chains.setdefault(space, {}), []
        for chain in chains:
            mine.setdefault(chain, 0)
            keys += as_bytes(keys_of(space, chain, CHAIN_CHUNKS))
        return keys

    def forget(self, space: int, gone: Iterable[int]) -> None:
        """Forgets chains of which nothing is left."""
        for chain in gone:
            self.chains[space].pop(chain, None)

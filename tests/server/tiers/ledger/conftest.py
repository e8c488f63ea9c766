"""A store with a ledger, over a store in memory, for the tests of both files of ``tier``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tiers.ledger import ledger as ledgers
from server.tiers.ledger.tier import LedgerTier
from tests.server.tiers.ledger.rig import Clock, ModelStore, Open, Shelf, opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def begun(tmp_path: Path, clock: Clock, shelf: Shelf) -> Iterator[Open]:
    tiers: list[LedgerTier] = []

    def make(max_values: int = ledgers.MAX_VALUES) -> tuple[LedgerTier, ModelStore]:
        store = ModelStore(shelf)
        tiers.append(opened(tmp_path / "ledger", store, None, clock, max_values))
        return tiers[-1], store

    yield make
    for tier in tiers:
        tier.close()

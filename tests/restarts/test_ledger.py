from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.restarts.content import CHAIN_CHUNKS, LOG_DTYPE, as_bytes, keys_of
from tests.restarts.ledger import Ledger


def note(path: Path, *rows: tuple[int, int, int]) -> None:
    with open(path, "ab") as file:
        file.write(np.array(list(rows), LOG_DTYPE).tobytes())


def test_answers_are_read_as_they_come(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "log")
    note(ledger.path, (5, 0, 128), (6, 3, 10))
    ledger.catch_up()
    assert ledger.chains == {0: {5: 128}, 3: {6: 10}}
    assert ledger.last == [(0, 5, 128), (3, 6, 10)]
    note(ledger.path, (7, 0, 1), (8, 0, 2))
    with open(ledger.path, "ab") as file:
        file.write(b"half a row")
    ledger.catch_up(keep=1)
    assert ledger.chains[0] == {5: 128, 7: 1, 8: 2}
    assert ledger.last == [(0, 8, 2)]


def test_flying_chains_count_as_nothing_committed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "log")
    note(ledger.path, (5, 0, 128))
    ledger.catch_up()
    keys = ledger.note_flying(0, [5, 9])
    assert ledger.chains == {0: {5: 128, 9: 0}}
    assert set(as_bytes(keys_of(0, 9, CHAIN_CHUNKS))) < set(keys)
    ledger.forget(0, [5, 77])
    assert ledger.chains == {0: {9: 0}}

"""An entry is what the index file's rows are made of, field for field."""

from __future__ import annotations

from server.tiers.disk.entries import Entry
from server.tiers.disk.index import ENTRY_DTYPE


def test_fields_are_those_of_a_row() -> None:
    assert ENTRY_DTYPE.names == Entry._fields

"""The key table against a dict, and how little of it moves at a time."""

from __future__ import annotations

import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.core.keytable import NUM_TABLES, KeyTable
from tests.server.core.world import chain

KEYS = st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=200)


@given(KEYS, st.data())
def test_it_is_a_dict(keys: list[bytes], data: st.DataObject) -> None:
    table, model = KeyTable(), {key: number for number, key in enumerate(keys)}
    table.add_all(keys, list(range(len(keys))))
    gone = data.draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
    for key in gone[::2]:
        table.remove(key)
    table.remove_all(b"".join(gone[1::2]))
    for key in gone:
        del model[key]
    assert dict(table.items()) == model
    assert len(table) == len(model)
    assert table.find_all(keys) == [model.get(key, -1) for key in keys]
    assert [table.find(key) for key in keys] == table.find_all(keys)


def test_what_is_not_there_cannot_be_removed() -> None:
    table = KeyTable()
    with pytest.raises(KeyError):
        table.remove(b"k" * 16)
    assert len(table) == 0


def test_it_is_emptied_in_slices() -> None:
    table = KeyTable()
    keys = [b"\0" + key for key in chain("x", 5000)]  # all in one dict
    table.add_all(keys, list(range(5000)))
    slices = sum(1 for _ in table.empty())
    assert slices == 10
    assert len(table) == 0
    assert table.items() == []


def test_no_single_dict_is_large() -> None:
    """One dict of all keys would move them all whenever it doubles."""
    table = KeyTable()
    keys = [hashlib.sha256(b"%d" % number).digest()[:16] for number in range(50_000)]
    table.add_all(keys, list(range(len(keys))))
    largest = max(map(sys.getsizeof, table.tables))
    everything = sys.getsizeof(dict(table.items()))
    assert largest < 4 * everything / NUM_TABLES

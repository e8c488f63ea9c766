"""The table of names does what a dict does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.tiers.disk import nametable
from server.tiers.disk.nametable import MAX_PLACE, NameTable

LENGTH = 36


def name(number: int) -> bytes:
    return number.to_bytes(LENGTH, "big")


OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200)


@pytest.mark.parametrize("spread", [1, 3, 1 << 62])
@given(operations=OPERATIONS)
def test_as_a_dict(spread: int, operations: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Few hashes: clusters, wrap-around at the table's end, equal tags.
        patch.setattr(nametable, "_LEAST_CELLS", 16)
        patch.setattr(
            nametable, "digest", lambda one: (1 << 64) - 1 - hash_of(one) % spread * 0x1_0000_0001
        )
        names: dict[int, bytes] = {}
        table, model = NameTable(lambda place: names[place]), dict[bytes, int]()
        for place, (is_add, number) in enumerate(operations, 1):
            one = name(number)
            assert table.find(one) == model.get(one, 0)
            if is_add and one not in model:
                names[place], model[one] = one, place
                table.add(one, place)
            elif not is_add and one in model:
                table.remove(one)
                del names[model.pop(one)]
            assert table.count == len(model)
        assert {one: table.find(one) for one in map(name, range(41))} == {
            one: model.get(one, 0) for one in map(name, range(41))
        }


def hash_of(one: bytes) -> int:
    return int.from_bytes(one, "big") * 0x9E37_79B9 % (1 << 31)


@pytest.mark.parametrize("before", [0, 500])
def test_many_at_once(before: int) -> None:
    names = {place: name(place * 7) for place in range(1, 10_000)}
    table = NameTable(names.__getitem__)
    for place in range(1, before + 1):
        table.add(names[place], place)
    rest = np.arange(before + 1, 10_000, dtype=np.uint64)
    table.add_all(b"".join(names[place] for place in rest.tolist()), LENGTH, rest)
    assert [table.find(names[place]) for place in names] == list(names)
    assert table.find(name(1)) == 0
    for place in range(1, 10_000, 2):
        table.remove(names[place])
    assert [table.find(names[place]) for place in names] == [
        0 if place % 2 else place for place in names
    ]
    assert table.count == 4999


def test_the_largest_place_is_kept() -> None:
    table = NameTable(lambda place: name(1))
    table.add(name(1), MAX_PLACE)
    assert table.find(name(1)) == MAX_PLACE
    table.remove(name(1))
    assert table.find(name(1)) == 0
    with pytest.raises(AssertionError):
        table.remove(name(1))

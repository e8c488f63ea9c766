"""What was found of one namespace: read, put in order, weighed."""

from __future__ import annotations

from collections import Counter

import numpy as np

from protocol.extents import RECORD_DTYPE, ExtentGeometry
from protocol.ids import ExtentId, InstanceId
from protocol.namespace import fingerprint
from server.core import lineage, records
from server.core.adoption import FoundExtent
from server.core.families import Family, misfit, read
from tests.server.core.world import PAGE, chain, namespace

SPACE = namespace()
NAME = fingerprint(SPACE)


def found(number: int, keys: list[bytes], parent: bytes, born: int, stamp_us: int) -> FoundExtent:
    rows = np.zeros(8, RECORD_DTYPE)
    if keys:
        rows[: len(keys)] = records.build(
            b"".join(keys), parent, NAME, 0, 1, PAGE, InstanceId(b"i" * 16), stamp_us, born
        )
    return FoundExtent(ExtentGeometry(ExtentId(number), NAME, 0, 1, PAGE, PAGE, 8), rows)


def test_an_extent_is_as_useful_as_what_continues_it() -> None:
    x = chain("x", 6)
    parts = [
        found(9, x[3:], x[2], born=50, stamp_us=900),
        found(2, x[:3], b"", born=1, stamp_us=100),
        found(4, chain("y", 3), b"", born=20, stamp_us=500),
        found(5, [], b"", born=1, stamp_us=1),
    ]
    rows = read(parts, Counter())
    assert [one.geometry.extent for one in parts] == [2, 4, 5, 9]
    family = Family(NAME, SPACE, parts, lineage.graph(rows))
    family.weigh(np.ones(9, np.bool_))
    assert family.used_us.tolist() == [900, 500, -1, 900]
    assert sorted(family.stamps_us().tolist()) == [100] * 3 + [500] * 3 + [900] * 3
    assert sorted(family.rows().tolist()) == list(range(9))
    # Without the chain's beginning its end is of no use.
    family.weigh(rows.file != 0)
    assert family.used_us.tolist() == [-1, 500, -1, -1]


def test_what_does_not_count_is_counted_by_reason() -> None:
    one = found(1, chain("x", 3), b"", born=1, stamp_us=1)
    one.records["stamp"][1] = 7
    dropped: Counter[str] = Counter()
    rows = read([one], dropped)
    assert len(rows.local) == 2
    assert dropped == Counter({"torn": 1, "not of this extent": 0})


def test_a_header_must_agree_with_its_namespace() -> None:
    cut = found(1, [], b"", 1, 1).geometry
    assert misfit(cut, {NAME: SPACE}) == ""
    assert misfit(cut, {}) == "of an unknown namespace"

"""Names of dimensions are the fields of a combination."""

from __future__ import annotations

from dataclasses import fields

from adapter.conformance.coverage.dimensions import DIMENSIONS, Combination


def test_a_combination_has_one_value_of_each_dimension() -> None:
    assert [field.name for field in fields(Combination)] == [one.name for one in DIMENSIONS]


def test_ids_name_every_value() -> None:
    one = Combination("E3", "plain", "v2_one", "sync", "tp2")
    assert one.test_id == "E3-plain-v2_one-sync-tp2"
    assert one.value("layout") == "v2_one"

"""Planted faults are found, and go without a trace."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.fuzz import planting
from tests.fuzz.plants import CI_SAMPLE, PLANTS, Plant, plant
from tests.fuzz.play import SequenceFuzz


@pytest.mark.parametrize("name", PLANTS)
def test_each_plant_fits_the_code_and_comes_out_again(name: str) -> None:
    where = PLANTS[name]
    module = importlib.import_module(where.module)

    def now() -> object:
        holder: object = module
        for part in where.function.split("."):
            holder = inspect.getattr_static(holder, part)
        return holder

    before = now()
    planted = plant(where)
    assert now() is not before
    planted.undo()
    assert now() is before


def test_a_function_taken_over_by_name_is_planted_there_too() -> None:
    from server.core import handle_saves

    before = vars(handle_saves)["unpack_pages"]
    planted = plant(PLANTS["page-sign"])
    assert vars(handle_saves)["unpack_pages"] is not before
    planted.undo()
    assert vars(handle_saves)["unpack_pages"] is before


def test_a_plant_whose_text_is_gone_says_so() -> None:
    rotten = Plant("", "protocol.codec", "_line", "no such text", "")
    with pytest.raises(ValueError, match="no such text"):
        plant(rotten)


@pytest.mark.parametrize("name", CI_SAMPLE)
def test_a_sample_of_them_is_found(name: str) -> None:
    found = planting.find(name, seed=1, limit_s=60)
    assert found["seconds"] is not None
    SequenceFuzz(1).one(0)  # and the product is sound again


def test_at_least_ten_kinds() -> None:
    assert len({one.function for one in PLANTS.values()}) >= 10

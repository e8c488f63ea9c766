"""The words between the shell and the core about what was found."""

from __future__ import annotations

from protocol.ids import ExtentId
from server.core import effects
from server.core.adoption import Adoption, Heritage, PartyId


def test_an_adoption_sums_up_what_was_dropped() -> None:
    result = Adoption(dropped={ExtentId(1): "torn"}, records_dropped={"torn": 2, "other": 3})
    assert result.num_records_dropped == 5
    assert Adoption().num_records_dropped == 0
    assert Adoption().dropped is not Adoption().dropped


def test_nothing_found_says_that_ids_begin_at_one() -> None:
    assert Heritage({}, [], []).next_extent == 1
    assert PartyId is effects.PartyId

"""Work that does not come to an end is seen; what does, or of which there is none, is not."""

from __future__ import annotations

from server.web.stalls import Stall, Stalls


def test_work_without_an_end_is_a_stall_from_when_it_was_first_seen() -> None:
    stall = Stall()
    assert stall.note(False, 100, 1.0) == 0
    assert stall.note(True, 100, 2.0) == 0
    assert stall.note(True, 100, 4.0) == 2
    assert stall.note(True, 100, 7.5) == 5.5


def test_each_end_begins_the_count_anew() -> None:
    stall = Stall()
    for at_s, ended in ((1.0, 0), (2.0, 8), (3.0, 9), (4.0, 16)):
        assert stall.note(True, ended, at_s) == 0
    assert stall.note(True, 16, 6.0) == 2


def test_no_work_is_no_stall() -> None:
    stall = Stall()
    stall.note(True, 100, 1.0)
    assert stall.note(True, 100, 5.0) == 4
    assert stall.note(False, 100, 6.0) == 0
    assert stall.note(True, 100, 9.0) == 0


def test_a_server_that_was_started_anew_counts_from_0() -> None:
    stall = Stall()
    stall.note(True, 100, 1.0)
    assert stall.note(True, 0, 5.0) == 0


def test_tiers_stand_still_each_for_itself() -> None:
    stalls = Stalls()
    values = {"tier_a_jobs": 1, "tier_a_put_bytes": 5, "tier_b_2_jobs": 1, "tier_b_2_get_bytes": 5}
    assert stalls.note(values, 1.0) == {"tier_a": 0, "tier_b_2": 0}
    moved = values | {"tier_b_2_get_bytes": 6}
    assert stalls.note(moved, 4.0) == {"tier_a": 3, "tier_b_2": 0}
    assert stalls.note({}, 5.0) == {"tier_a": 0, "tier_b_2": 0}


def test_forgetting_takes_its_time() -> None:
    stalls = Stalls()
    values = {"tier_a_jobs": 1, "tier_a_drops_owed": 1}
    stalls.note(values, 1.0)
    assert stalls.note(values, 100.0)["tier_a"] == 0

"""Everything is counted, little is logged."""

import logging

import pytest

from protocol.logline import About, about_of
from server.shell.complaints import Complaints


def test_each_kind_is_logged_once_per_interval_and_always_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints(interval_s=3600)
    with caplog.at_level(logging.WARNING, "kvkeep.server"):
        for number in range(1000):
            complaints.note("a", f"event {number}")
        complaints.note("b", "another")
    assert complaints.counts() == {"a": 1000, "b": 1}
    assert complaints.figures() == {"complaint_a": 1000, "complaint_b": 1}
    assert [record.getMessage() for record in caplog.records] == ["a: event 0", "b: another"]


def test_the_next_line_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(interval_s=3600)
    with caplog.at_level(logging.WARNING, "kvkeep.server"):
        for _ in range(4):
            complaints.note("a", "x")
        complaints._next_ns.clear()  # the interval is over
        complaints.note("a", "y", ValueError("why"))
    assert "3 more" in caplog.records[1].getMessage()
    assert caplog.records[1].exc_info is not None


def test_a_line_names_what_it_is_about(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(interval_s=3600)
    about = About(op="STORE", request=7)
    with caplog.at_level(logging.INFO, "kvkeep.server"):
        complaints.note("a", "x", about=about)
        for rule in ("one", "one", "two"):
            complaints.tell("b", rule, "y", about)
    assert [one.getMessage() for one in caplog.records] == [
        "a: x [STORE, request 7]",
        *["b: y [STORE, request 7]"] * 2,
    ]
    assert [about_of(one) for one in caplog.records] == [
        about._replace(event="a"),
        *[about._replace(event="b")] * 2,
    ]
    assert complaints.counts() == {"a": 1}


def test_what_others_say_makes_no_line_and_moves_no_cursor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "kvkeep.server"):
        Complaints().note("web_said", "é\rgone \x1b[2J\u2028next")
    assert caplog.records[0].getMessage() == "web_said: é\\rgone \\x1b[2J\\u2028next"


def test_a_traceback_of_ours_keeps_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvkeep.server"):
        Complaints().note(
            "core_fault", "KeyError: 1", traceback="Traceback:\n  at x\nKeyError: 1\n"
        )
    [text] = caplog.messages
    assert text == "core_fault: KeyError: 1\nTraceback:\n  at x\nKeyError: 1"

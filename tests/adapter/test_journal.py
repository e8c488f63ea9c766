"""Counting, and one line per kind and minute."""

from __future__ import annotations

import logging

import pytest

from adapter.journal import MAX_KINDS, Journal
from protocol.logline import About, about_of


def test_counts_each_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(logging.getLogger("kvkeep.test"))
    with caplog.at_level(logging.DEBUG, "kvkeep.test"):
        for _ in range(5):
            journal.report("lost", "the server is lost")
        journal.report("odd", "something else", logging.INFO)
    assert journal.counters() == {"lost": 5, "odd": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "the server is lost",
        "something else",
    ]


def test_says_it_again_after_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("adapter.journal.time.monotonic", lambda: now_s)
    journal = Journal(logging.getLogger("kvkeep.test"))
    with caplog.at_level(logging.DEBUG, "kvkeep.test"):
        journal.report("lost", "one")
        now_s += 59
        journal.report("lost", "two")
        now_s += 2
        journal.report("lost", "three")
    assert [record.getMessage() for record in caplog.records] == ["one", "three"]


def test_good_news_follows_the_bad_it_answers_however_soon(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("adapter.journal.time.monotonic", lambda: now_s)
    journal = Journal(logging.getLogger("kvkeep.test"))
    with caplog.at_level(logging.DEBUG, "kvkeep.test"):
        for _ in range(3):
            assert journal.report("back", "back", logging.INFO, after="lost")
            assert not journal.report("back", "back", logging.INFO, after="lost")
            now_s += 1
            assert journal.report("lost", "lost", every_s=2.0)
            now_s += 1
        now_s -= 0.5
        assert not journal.report("lost", "lost", every_s=2.0)  # so the last word is still true
        assert journal.say("back", "back", after="lost")
        assert not journal.say("back", "back", after="lost")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["back", "lost"] * 3 + ["back"]
    assert journal.counters() == {"back": 6, "lost": 4}


def test_percent_signs_are_no_format(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvkeep.test"):
        Journal(logging.getLogger("kvkeep.test")).report("lost", "100 %s")
    assert caplog.records[0].getMessage() == "100 %s"


def test_kinds_are_bounded() -> None:
    journal = Journal(logging.getLogger("kvkeep.test"))
    for index in range(2 * MAX_KINDS):
        journal.count(f"kind {index}")
    journal.count("kind 0", 4)
    assert len(journal.counters()) == MAX_KINDS
    assert journal.counters()["kind 0"] == 5


def test_a_line_about_a_request_names_it(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(logging.getLogger("kvkeep"))
    journal.report("a", "x", about=About(request=7))
    journal.report("b", "y", about=About(host_request=0))
    assert [one.getMessage() for one in caplog.records] == [
        "x [request 7]",
        "y [the host's request 0]",
    ]
    assert about_of(caplog.records[0]) == About("a", request=7)


def test_a_servers_words_move_no_cursor(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(logging.getLogger("kvkeep.test"))
    with caplog.at_level(logging.WARNING, "kvkeep.test"):
        journal.report("saves_refused", "a save was refused: no\n\x1b[2J room")
    assert caplog.records[0].getMessage() == "a save was refused: no\\n\\x1b[2J room"

"""Lines of JSON, what they are about, and how many of a kind there may be."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from protocol.logline import (
    MAX_EVENTS,
    MAX_TEXT_CHARS,
    About,
    JsonFormatter,
    Throttle,
    about_of,
    extra,
    json_line,
    printable,
    public,
    rfc3339,
    wants_json,
)


def record(text: str, *arguments: object, about: About | None = None) -> logging.LogRecord:
    made = logging.LogRecord("x", logging.WARNING, "/a/keeper.py", 1, text, arguments, None)
    if about is not None:
        made.__dict__ |= extra(about)
    made.created = 1_767_323_045.678
    return made


def test_a_record_is_one_object_on_one_line() -> None:
    about = About("store_refused", "", "STORE", 9, 7, "0a", "ff" * 16, 3)
    line = JsonFormatter("server").format(record('a %s\nb "c" \udc80 é', "x", about=about))
    assert "\n" not in line
    assert json.loads(line.encode("utf-8", "backslashreplace")) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "WARNING",
        "process": "server",
        "event": "store_refused",
        "message": 'a x\nb "c" \udc80 é',
        "op": "STORE",
        "seq": 9,
        "request": 7,
        "engine": "0a",
        "namespace": "ff" * 16,
        "left_out": 3,
    }


def test_a_traceback_stands_in_it_and_texts_are_bounded() -> None:
    made = record("x" * (MAX_TEXT_CHARS + 5))
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    told = json.loads(JsonFormatter("copier").format(made))
    assert "ValueError: why" in told["traceback"]
    assert told["message"].endswith("(5 characters left out)")
    assert told["process"] == "copier"


def test_the_event_is_the_sources_word_and_never_a_peers() -> None:
    assert about_of(record("arena_adopted: %s", "x")).event == "arena_adopted"
    assert about_of(record("%s: %s", "made_up", "x")).event == "keeper"
    assert about_of(record("%s ended with %d", "copier host", 1)).event == "keeper"
    assert about_of(record("kvkeep: server %s (from %s)", "x", "y")).event == "keeper"
    assert about_of(record("kvkeep: staged: %s", "x")).event == "staged"


def test_who_it_is_about_reads_well() -> None:
    assert str(About("x")) == ""
    assert str(About("x", op="STORE", request=0, namespace="ab" * 16)) == (
        "STORE, request 0, namespace abababababab"
    )


def test_request_0_is_told_and_none_is_not() -> None:
    assert json.loads(json_line(0, "INFO", "web", "m", About("e", request=0)))["request"] == 0
    assert "request" not in json.loads(json_line(0, "INFO", "web", "m", About("e")))
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"


def test_the_environment_is_read_leniently() -> None:
    assert wants_json({"KVKEEP_LOG_FORMAT": " JSON "})
    assert not wants_json({"KVKEEP_LOG_FORMAT": "text"})
    assert not wants_json({})


def test_so_many_of_one_event_pass_and_the_rest_is_counted() -> None:
    throttle = Throttle(lines=3, interval_s=60)
    assert [throttle.admit("a", 10.0 + n) for n in range(10)] == [0, 0, 0, *[-1] * 7]
    assert throttle.admit("b", 20) == 0
    assert throttle.admit("a", 70) == 7
    assert throttle.admit("a", 71) == 0


def test_what_was_left_out_is_told_though_no_more_comes() -> None:
    throttle = Throttle(lines=1, interval_s=60)
    for now_s in (0.0, 1.0, 2.0):
        throttle.admit("a", now_s)
    assert throttle.take_overdue(59) == []
    assert throttle.take_overdue(60) == [("a", 2)]
    assert throttle.take_overdue(61) == []


def test_a_clock_that_is_set_back_silences_nothing_for_long() -> None:
    throttle = Throttle(lines=1, interval_s=60)
    throttle.admit("a", 1000)
    assert throttle.admit("a", 10) == 0


def test_events_are_bounded() -> None:
    throttle = Throttle(lines=1, interval_s=60)
    admitted = [throttle.admit(f"e{n}", 0) for n in range(MAX_EVENTS + 50)]
    assert admitted.count(0) == MAX_EVENTS + 1  # all further ones count as one
    assert throttle.take_overdue(60) == [("", 49)]
    assert [throttle.admit(f"e{n}", 61) for n in (7, 7, 300)] == [0, -1, 0]  # there is room again


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a http://u:p/w@x@host:1/y, b", "a http://host:1/y, b"),
        ("mail to a@b", "mail to a@b"),
        ("//" * MAX_TEXT_CHARS + "u@h", "//" * (MAX_TEXT_CHARS // 2)),
        ("x://a x://u:p@b\nx", "x://a x://b\nx"),
    ],
)
def test_what_an_address_has_before_its_host_is_left_out(said: str, shown: str) -> None:
    assert public(said) == shown


def test_no_line_is_made_by_what_is_in_one() -> None:
    assert printable("a\nb\x1b[31m \u2028é") == "a\\nb\\x1b[31m \\u2028é"

"""Notes of a porter: the latest warnings, in one line each, without tracebacks."""

import logging

import pytest

from server.porter.notes import AGAIN_S, MAX_NOTES, Notes, Warned


def logger_of(notes: Notes) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(notes)
    return logger


def test_warnings_come_in_order_one_line_each_and_wake() -> None:
    notes, woken = Notes(), []
    notes.wake = lambda: woken.append(1)
    logger = logger_of(notes)
    logger.info("nothing")
    logger.warning("the %s\nis full", "disk")
    logger.error("and more")
    assert len(woken) == 2
    assert notes
    assert [notes.take(), notes.take(), notes.take()] == ["the disk is full", "and more", None]
    assert not notes


def test_a_traceback_is_left_out() -> None:
    notes = Notes()
    try:
        raise RuntimeError("password=x")
    except RuntimeError:
        logger_of(notes).exception("failed")
    assert notes.take() == "failed"


def test_only_the_latest_are_kept() -> None:
    notes = Notes()
    for number in range(MAX_NOTES + 5):
        logger_of(notes).warning("%d", number)
    assert notes.take() == "5"


def test_a_warning_that_stays_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [10.0]
    warned = Warned(lambda: now_s[0])
    warned.tell("")
    for _ in range(3):
        warned.tell("full")
    assert caplog.messages == ["full"]
    for _ in range(3):
        now_s[0] += AGAIN_S
        warned.tell("full")
    assert caplog.messages == ["full"] * 3, "after one, and two more"
    caplog.clear()
    warned.tell("no node")
    warned.tell("")
    warned.tell("no node")
    assert caplog.messages == ["no node", "no node"]

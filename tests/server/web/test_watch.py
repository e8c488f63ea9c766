"""The asking thread: at most one question a second, answers shared, errors told and outlived."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Quotas, QuotasReply, Request, StatusReply
from server.web import watch
from server.web.watch import Answer, B, Watch
from tests.server.web.answers import QUOTA, status

FRESH_S, EVERY_S = 0.1, 0.5
STALE_S = 0.13
"""After so long what was told is no longer fresh."""


class Fake:
    """A server whose answers a test sets."""

    def __init__(self) -> None:
        self.asked = 0
        self.opened = 0
        self.closed = 0
        self.fails: Exception | None = None
        self.status_fails: Exception | None = None
        self.quotas_fail: Exception | None = None
        self.delay_s = 0.0

    @contextmanager
    def opens(self) -> Iterator[Fake]:
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    def stats(self, limit_s: float) -> dict[str, int]:
        self.asked += 1
        time.sleep(self.delay_s)
        if self.fails is not None:
            raise self.fails
        return {"requests": self.asked}

    def status(self, limit_s: float) -> StatusReply:
        if self.status_fails is not None:
            raise self.status_fails
        return status()

    def expect(self, body: Request, kind: type[B], limit_s: float) -> B:
        assert isinstance(body, Quotas)
        if self.quotas_fail is not None:
            raise self.quotas_fail
        told = QuotasReply(arena_bytes=1, quotas=(QUOTA,))
        assert isinstance(told, kind)
        return told


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def points() -> list[Answer]:
    return []


@pytest.fixture
def watching(fake: Fake, points: list[Answer], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(watch, "FRESH_S", FRESH_S)
    monkeypatch.setattr(watch, "EVERY_S", EVERY_S)
    monkeypatch.setattr(watch, "LIMIT_S", 0.3)
    made = Watch("/nowhere", points.append, fake.opens)
    made.start()
    yield made
    assert made.stop(5.0)


def test_many_readers_share_one_answer(watching: Watch, fake: Fake) -> None:
    views = []
    threads = [threading.Thread(target=lambda: views.append(watching.view())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(views) == 20
    assert {view.why for view in views} == {""}
    assert fake.asked <= 2
    assert fake.opened == 1


def test_no_more_than_one_question_in_the_time_however_many_ask(
    watching: Watch, fake: Fake
) -> None:
    watching.view()
    begun_s, before = time.monotonic(), fake.asked
    while time.monotonic() - begun_s < 0.5:
        view = watching.view()
        assert view.latest is not None
    passed_s = time.monotonic() - begun_s
    assert 2 <= fake.asked - before <= passed_s / FRESH_S + 1


def test_what_is_fresh_is_not_asked_again(
    watching: Watch, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FRESH_S", 60.0)
    first = watching.view()
    assert watching.view().latest is first.latest
    monkeypatch.setattr(watch, "FRESH_S", FRESH_S)
    time.sleep(STALE_S)
    second = watching.view()
    assert second.latest is not None
    assert second.latest.values["requests"] == fake.asked


def test_a_server_that_does_not_answer_is_told_of_with_the_last_good_answer(
    watching: Watch, fake: Fake
) -> None:
    good = watching.view().latest
    fake.fails = TimeoutError("it did not answer in time")
    time.sleep(STALE_S)
    view = watching.view()
    assert "did not answer in time" in view.why
    assert view.good is good
    assert view.latest is not None
    assert view.latest.values == {}
    assert (fake.opened, fake.closed) == (1, 1), "a late answer must not pass for the next one"
    fake.fails = None
    time.sleep(STALE_S)
    assert watching.view().why == ""
    assert fake.opened == 2


@pytest.mark.parametrize("error", [FileNotFoundError(), RuntimeError("odd"), ValueError()])
def test_whatever_goes_wrong_the_next_question_is_asked(
    watching: Watch, fake: Fake, error: Exception
) -> None:
    fake.fails = error
    time.sleep(STALE_S)
    assert watching.view().why
    fake.fails = None
    time.sleep(STALE_S)
    assert watching.view().why == ""


def test_a_reader_waits_no_longer_than_the_limit_and_a_moment(watching: Watch, fake: Fake) -> None:
    watching.view()
    fake.delay_s = 2.0
    time.sleep(STALE_S)
    begun_s = time.monotonic()
    watching.view()
    assert time.monotonic() - begun_s < 1.8
    fake.delay_s = 0.0


def test_the_history_gets_a_point_in_each_stretch_of_time(
    watching: Watch, points: list[Answer]
) -> None:
    end_s = time.monotonic() + 4 * EVERY_S
    while time.monotonic() < end_s:  # readers make neither more points nor fewer
        watching.view()
        time.sleep(0.02)
    assert 2 <= len(points) <= 6
    gaps = [later.at_s - before.at_s for before, later in itertools.pairwise(points)]
    assert all(gap > EVERY_S - 2 * FRESH_S for gap in gaps), gaps


def test_a_server_of_before_answers_without_status(watching: Watch, fake: Fake) -> None:
    before = watching.view().latest
    assert before is not None
    assert before.quotas == (QUOTA,)
    fake.status_fails = ReplyError(ErrorCode.UNKNOWN_OPERATION, "39 is no operation")
    fake.quotas_fail = ReplyError(ErrorCode.UNKNOWN_OPERATION, "40 is no operation")
    time.sleep(STALE_S)
    view = watching.view()
    assert view.why == ""
    assert view.latest is not None
    assert view.latest.status is None
    assert view.latest.quotas == ()
    assert view.latest.values
    fake.status_fails = fake.quotas_fail = None
    time.sleep(STALE_S)
    again = watching.view().latest
    assert again is not None
    assert again.status is None, "it is not asked again on this connection"


def test_another_error_of_status_counts_as_no_answer(watching: Watch, fake: Fake) -> None:
    fake.status_fails = ReplyError(ErrorCode.STALE_EPOCH, "another incarnation")
    time.sleep(STALE_S)
    assert "another incarnation" in watching.view().why


def test_before_the_first_answer_nothing_is_known() -> None:
    assert watch.View().why == "it was not asked yet"

"""The last hour: bounded, in order, and buckets of one life of the server only."""

from __future__ import annotations

import msgspec

from server.web.history import FIGURES, NUM_POINTS, TIER_FIGURES, History
from tests.server.web.answers import SERVER, TIER, answer, buckets, latency, status


def test_a_point_has_what_was_told() -> None:
    history = History()
    values = {"requests": 3, "hit_tokens_l1": 2, "hit_tokens_disk": 3, "unknown": 9}
    values["tier_disk_get_bytes"] = 7
    history.note(answer(values, status(tiers=(TIER,))))
    (point,) = history.since(0)
    figures = dict(zip(FIGURES, point.figures, strict=True))
    told = [figures[name] for name in ("requests", "hit_tokens", "hit_tokens_l1", "loaded_tokens")]
    assert told == [3, 5, 2, 0]
    assert dict(zip(TIER_FIGURES, point.tiers["disk"], strict=True))["get_bytes"] == 7
    assert point.is_answered


def test_a_point_without_an_answer_is_a_gap() -> None:
    history = History()
    history.note(answer(why="it did not answer in time"))
    (point,) = history.since(0)
    assert (point.is_answered, point.figures, dict(point.tiers)) == (False, (), {})


def test_no_more_than_an_hour_is_kept_and_later_points_can_be_asked_for() -> None:
    history = History()
    for number in range(NUM_POINTS + 10):
        history.note(answer({"requests": number}, at_s=5.0 * number))
    points = history.since(0)
    assert [len(points), points[0].figures[0], points[-1].figures[0]] == [NUM_POINTS, 10, 729]
    assert [point.figures[0] for point in history.since(points[-3].clock_s)] == [728, 729]


def test_buckets_of_five_minutes_ago_are_found() -> None:
    history = History()
    for number in range(100):
        told = status(latency={"LOOKUP": latency(b0=number)})
        history.note(answer(told=told, at_s=5.0 * number))
    now = answer(told=status(), at_s=500.0)
    passed_s, before = history.buckets_before(now)
    assert passed_s == 300.0
    assert before["LOOKUP"] == buckets(b0=40)


def test_buckets_of_a_former_server_are_not_taken_off() -> None:
    history = History()
    former = msgspec.structs.replace(SERVER, epoch=b"f" * 16)
    history.note(answer(told=status(server=former), at_s=995.0))
    assert history.buckets_before(answer(told=status(), at_s=1000.0)) == (0.0, {})

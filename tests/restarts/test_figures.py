from __future__ import annotations

from typing import Any

import pytest

from tests.restarts.figures import WITHIN, Kill, Tally


def good(**changes: Any) -> Kill:
    values = {
        "held": 1000,
        "begun": 3,
        "evicted_last": 5,
        "reclaimed": 1,
        "answer_s": 0.5,
        "due": 1000,
        "hits": 1000,
        "fresh": 100,
        "fresh_hits": 100,
        "old_read": 10,
    }
    return Kill(**(values | changes))


def failed(kills: list[Kill], troubles: list[str] | None = None) -> list[str]:
    document = Tally(1, 1000, kills, troubles or []).document()
    assert document["held"] == all(document["claims"].values())
    return [claim for claim, held in document["claims"].items() if not held]


def test_a_good_run_holds() -> None:
    assert failed([good()] * 4 + [good(begun=0, reclaimed=0, old_read=0, evicted_last=0)]) == []


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"held": 999}, "at least 1000 chunks were held at each kill"),
        ({"answer_s": 2.1}, WITHIN),
        ({"hits": 998}, "99.9 % of committed chunks hit after each"),
        ({"due": 0, "hits": 0}, "99.9 % of committed chunks hit after each"),
        ({"fresh_hits": 90}, "99.9 % of the chunks committed last hit"),
        ({"unrecorded": 1}, "nothing was offered that had no record"),
        ({"wrong": 1}, "no page was wrong"),
        ({"old_wrong": 1}, "old engines read their bytes"),
    ],
)
def test_one_bad_kill_of_many_fails(changes: dict[str, Any], claim: str) -> None:
    assert failed([good()] * 9 + [good(**changes)]) == [claim]


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("begun", "a fifth of the kills came mid-write"),
        ("evicted_last", "chunks were being evicted at a fifth"),
        ("reclaimed", "extents were reclaimed before a fifth"),
    ],
)
def test_too_few_kills_of_a_kind_fail(name: str, claim: str) -> None:
    assert failed([good()] * 2 + [good(**{name: 0})] * 8) == []
    assert failed([good()] + [good(**{name: 0})] * 9) == [claim]


def test_nobody_read_late_and_troubles_fail() -> None:
    assert failed([good(old_read=0)]) == ["old engines read their bytes"]
    assert failed([good()], ["something"]) == ["no trouble"]
    assert len(failed([])) > 3

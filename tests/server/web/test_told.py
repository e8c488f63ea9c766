"""What the dashboard is told: everything STATS and STATUS said, plain, and no more of a secret."""

from __future__ import annotations

import json

import msgspec

from server.web.history import History
from server.web.told import short, told
from server.web.watch import View
from tests.server.web.answers import (
    ENGINE,
    PREFIX,
    QUOTA,
    SERVER,
    SLOW,
    TIER,
    answer,
    latency,
    silent,
    status,
    view,
)


def test_counters_are_told_as_they_are_and_rows_field_by_field() -> None:
    history = History()
    history.note(answer({"requests": 5}, status()))
    made = told(view({"requests": 5, "chunks": 2}, status()), history, 2e9, 0)
    plain = json.loads(json.dumps(made))
    assert plain["stats"] == {"chunks": 2, "requests": 5}
    assert plain["answers"] is True
    (engine,) = plain["status"]["engines"]
    assert engine.keys() == set(ENGINE.__struct_fields__)
    assert engine["namespaces"] == [short(b"n" * 16)] == ["6e" * 6]
    assert plain["status"]["server"].keys() == set(SERVER.__struct_fields__)
    assert [row["name"] for row in plain["status"]["tiers"]] == ["disk"]
    assert len(plain["history"]["points"]) == 1


def test_without_an_answer_it_says_why_and_shows_the_last() -> None:
    good = answer({"requests": 5}, status(), at_s=900.0)
    plain = told(View(silent("gone").latest, good), History(), 2e9, 0)
    assert (plain["answers"], plain["why"]) == (False, "gone")
    assert plain["stats"] == {"requests": 5}
    assert plain["answered_at"] == good.clock_s
    assert [check["good"] for check in plain["checks"]] == [False]


def test_before_the_first_answer_there_is_nothing() -> None:
    plain = told(View(), History(), 2e9, 0)
    assert (plain["answers"], plain["status"], plain["stats"]) == (False, None, {})
    assert plain["answered_at"] is None


def test_percentiles_are_of_the_last_five_minutes() -> None:
    history = History()
    history.note(answer(told=status(latency={"STORE": latency(b0=1000)}), at_s=800.0))
    now = status(latency={"STORE": latency(b0=1000, b10=100)})
    row = told(View(answer(told=now), answer(told=now)), history, 2e9, 0)["status"]["latency"]
    assert row["recent_s"] == 200.0
    store = row["ops"]["STORE"]
    assert (store["recent"], store["count"], store["slow"]) == (100, 1100, 100)
    assert 100_000 < store["p50_us"] < 250_000


def test_an_operation_without_recent_requests_has_no_percentile() -> None:
    history = History()
    same = status(latency={"STORE": latency(b0=10)})
    history.note(answer(told=same, at_s=800.0))
    plain = told(View(answer(told=same), answer(told=same)), history, 2e9, 0)
    store = plain["status"]["latency"]["ops"]["STORE"]
    assert (store["p99_us"], store["recent"], store["count"]) == (None, 0, 10)


def test_a_server_of_before_has_no_rows() -> None:
    assert told(view({"requests": 1}), History(), 2e9, 0)["status"] is None


def test_no_key_of_a_row_names_a_salt_or_a_token() -> None:
    text = json.dumps(told(view({}, status()), History(), 2e9, 0))
    assert "salt" not in text
    assert '"token"' not in text
    assert b"n".hex() * 16 not in text, "fingerprints are short"
    assert msgspec.json.encode(SERVER.endpoint).decode() in text


def test_hot_prefixes_are_told_with_their_models_name() -> None:
    stranger = msgspec.structs.replace(PREFIX, fingerprint=b"o" * 16)
    latest = view({}, status(prefixes=(PREFIX, stranger)))
    first, second = told(latest, History(), 2e9, 0)["status"]["prefixes"]
    assert first == {
        "fingerprint": "6e" * 6,
        "name": "some/model",
        "head": b"prefix".hex(),
        "chunks": 5,
        "hits": 7,
        "idle_s": 2.5,
    }
    assert (second["fingerprint"], second["name"]) == ("6f" * 6, "")


def test_slow_requests_keep_every_digit_of_their_number() -> None:
    nameless = msgspec.structs.replace(SLOW, request=-1, fingerprint=b"", instance=b"")
    first, second = told(view({}, status(slow=(SLOW, nameless))), History(), 2e9, 0)["status"][
        "slow"
    ]
    assert first == {
        "op": "STORE",
        "seq": 9,
        "request": str(1 << 60),
        "client": SLOW.client,
        "instance": "69" * 16,
        "fingerprint": "6e" * 6,
        "spent_us": 250_000,
        "wait_ms": 0,
        "age_s": 3.5,
    }
    assert (second["request"], second["fingerprint"], second["instance"]) == ("", "", "")


def test_quotas_are_told_by_a_short_digest_and_where_they_hold() -> None:
    below = msgspec.structs.replace(QUOTA, tier="disk")
    latest = answer(quotas=(QUOTA, below))
    first, second = told(View(latest, latest), History(), 2e9, 0)["quotas"]
    sizes = {"held_bytes": 60, "floor_bytes": 100, "limit_bytes": 0, "at_limit": False}
    assert first == {"kind": "salt", "tenant": "74" * 6, "tier": "l1", **sizes}
    assert second == {**first, "tier": "disk"}
    full = msgspec.structs.replace(QUOTA, limit_bytes=60)
    latest = answer(told=status(), quotas=(full,))
    made = told(View(latest, latest), History(), 2e9, 0)
    assert [row["at_limit"] for row in made["quotas"]] == [True]
    assert len(made["remarks"]) == 1
    assert "salt/74" in made["remarks"][0]


def test_what_is_worth_knowing_is_told_in_the_words_of_the_command() -> None:
    warned = status(tiers=(msgspec.structs.replace(TIER, warning="it is full"),))
    assert told(view({}, warned), History(), 2e9, 0)["remarks"] == ["tier disk: it is full"]
    assert told(view({}, status()), History(), 2e9, 0)["remarks"] == []
    for unknown in (view({}), silent()):
        assert told(unknown, History(), 2e9, 0)["remarks"] == []


def test_how_much_operators_keep_is_told_in_bytes() -> None:
    made = told(view({}, status()), History(), 2e9, 0)
    assert made["status"]["pinned_bytes"] == (1 << 20) * 3 // 20

"""One document of all that a server tells, and what is wrong with it."""

from __future__ import annotations

import json

import msgspec
import pytest

from protocol.messages import StatusReply
from protocol.status import LATENCY_BOUNDS_US, SlowRequest
from server.cli import overview
from server.web import health
from server.web.watch import Answer, View
from tests.server.cli.told import COPIER, ENGINE, SERVER, SPACE, STATS, TIER, latency, reply

replace = msgspec.structs.replace


def test_all_that_was_told_is_there_as_plain_values() -> None:
    operator = replace(ENGINE, state="operator", pid=9)
    found = overview.document(reply(engines=(ENGINE, operator)), STATS)
    assert json.loads(json.dumps(found)) == found
    assert (found["healthy"], found["reasons"]) == (True, [])
    assert [one["pid"] for one in found["engines"]] == [8]
    assert found["engines"][0]["namespaces"] == [(b"n" * 16).hex()]
    assert found["namespaces"][0]["fingerprint"] == (b"n" * 16).hex()
    assert found["tiers"][0]["waiting_puts"] == 5
    assert found["l1"] == {
        "capacity_bytes": 64 << 20,
        "held_bytes": 10 << 20,
        "extent_bytes": 16 << 20,
        "quarantined_bytes": 0,
        "chunks": 10,
        "pinned_chunks": 3,
        "evicted_chunks": 4,
        "reclaimed_chunks": 0,
    }
    assert found["hits"] == {
        "requested_chunks": 200,
        "hit_chunks": 150,
        "retrieved_chunks": 120,
        "published_chunks": 14,
        "requested_tokens": 6400,
        "hit_tokens_l1": 4480,
        "hit_tokens_disk": 320,
        "loaded_tokens": 3840,
    }


def test_counters_that_did_not_count_yet_are_zero() -> None:
    found = overview.document(reply(latency={}), {})
    assert found["hits"]["hit_chunks"] == found["l1"]["chunks"] == 0
    assert found["hits"]["hit_tokens_l1"] == found["hits"]["loaded_tokens"] == 0


def test_remarks_and_what_the_log_has_are_no_illness() -> None:
    warned = reply(tiers=(replace(TIER, warning="it is full"),))
    found = overview.document(warned, {**STATS, "complaint_porter_lost": 2})
    assert found["healthy"]
    assert found["remarks"] == ["tier disk: it is full"]
    assert found["complaints"] == {"porter_lost": 2}
    assert overview.document(reply(), STATS)["complaints"] == {}


def test_slow_requests_are_told_with_names_in_hex() -> None:
    row = SlowRequest(
        op="STORE", seq=9, request=7, fingerprint=b"n" * 16, spent_us=250_000, age_s=1.23456
    )
    (found,) = overview.document(reply(slow=(row,)), STATS)["slow"]
    assert (found["fingerprint"], found["instance"]) == ((b"n" * 16).hex(), "")
    assert (found["request"], found["seq"], found["age_s"]) == (7, 9, 1.235)


def test_latency_is_told_by_the_buckets_that_quantiles_are_in() -> None:
    found = overview.latency(LATENCY_BOUNDS_US, latency(98, 1, 0, 1, sum_us=5000))
    assert found == {"count": 100, "mean_us": 50.0, "p50_us": 100, "p99_us": 250}
    beyond = (0,) * (len(LATENCY_BOUNDS_US)) + (4,)
    slow = overview.latency(LATENCY_BOUNDS_US, latency(*beyond, sum_us=10**9))
    assert slow["p50_us"] == LATENCY_BOUNDS_US[-1]
    assert overview.latency(LATENCY_BOUNDS_US, latency())["p99_us"] == 0


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (reply(server=replace(SERVER, draining=True)), "the server is ending"),
        (reply(copiers=(replace(COPIER, state="down"),)), "the copier of host is down"),
        (reply(copiers=(replace(COPIER, state="starting"),)), "the copier of host is starting"),
        (reply(copiers=(replace(COPIER, stuck=1),)), "1 copiers of host were killed"),
        (
            reply(copiers=(replace(COPIER, silent_s=3.2),)),
            "the copier of host has not answered for 3",
        ),
        (reply(tiers=(replace(TIER, state="down"),)), "tier disk is down"),
        (reply(tiers=(replace(TIER, state="down", why="no room"),)), "tier disk is down: no room"),
        (reply(tiers=(replace(TIER, state="breaker open"),)), "tier disk is left alone"),
        (reply(tiers=(replace(TIER, silent_s=8.2),)), "tier disk has not answered for 8 s"),
    ],
)
def test_what_is_wrong_is_said(status: object, said: str) -> None:
    assert isinstance(status, type(reply()))
    [reason] = overview.reasons(status, STATS)
    assert reason.startswith(said)
    assert overview.document(status, STATS)["healthy"] is False


def test_a_server_without_the_gauge_of_before_has_its_namespaces_bytes_as_its_fill() -> None:
    old = {name: value for name, value in STATS.items() if name != "arena_held_bytes"}
    assert overview.l1(reply(), old)["held_bytes"] == SPACE.bytes


def test_a_copier_that_answers_after_a_moment_is_no_fault() -> None:
    assert overview.reasons(reply(copiers=(replace(COPIER, silent_s=0.5, jobs=4),)), STATS) == []


def test_a_copier_that_ends_for_want_of_engines_is_no_fault() -> None:
    assert overview.reasons(reply(copiers=(COPIER, replace(COPIER, state="ending"))), STATS) == []


@pytest.mark.parametrize(
    ("status", "stats"),
    [
        (reply(), {}),
        (reply(), {"extents": 2, "extents_failed": 3}),
        (reply(), {"extents": 0, "extents_failed": 3}),
        (reply(), {"complaint_socket_removed": 1}),
        (reply(), {"complaint_arena_removed": 1}),
        (reply(server=replace(SERVER, draining=True)), {}),
        (reply(copiers=(replace(COPIER, silent_s=3.2),)), {}),
        (reply(copiers=(COPIER, replace(COPIER, name="GPU-1", state="ending"))), {}),
        (reply(tiers=(replace(TIER, state="starting"),)), {}),
    ],
)
def test_the_command_and_the_probe_judge_alike(status: StatusReply, stats: dict[str, int]) -> None:
    told = Answer(1.0, 1.0, 0.01, {**STATS, **stats}, status)
    is_ready = all(check.is_good for check in health.ready(View(told, told)))
    assert overview.document(status, {**STATS, **stats})["healthy"] == is_ready

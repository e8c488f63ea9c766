"""What happened between two looks."""

from __future__ import annotations

import msgspec
import pytest

from protocol.status import EngineStatus
from server.cli.rates import GONE_S, Departures, Moment, between
from tests.server.cli.told import ENGINE, SERVER, STATS, reply

replace = msgspec.structs.replace
LATER = {
    **STATS,
    "lookup_chunks": 300,
    "hit_chunks": 225,
    "retrieved_chunks": 140,
    "published_chunks": 24,
    "copied_bytes": 24 << 20,
    "evicted_chunks": 8,
    "reclaimed_chunks": 3,
    "tier_disk_get_bytes": 12 << 20,
    "tier_disk_hit_chunks": 7,
}


def test_what_grew_is_told_and_divided_by_the_time() -> None:
    engine = replace(ENGINE, requested_chunks=150, hit_chunks=100)
    fresh = replace(ENGINE, pid=10, instance=b"j" * 16, requested_chunks=5, hit_chunks=5)
    operator = replace(ENGINE, pid=11, state="operator")
    now = Moment(12.0, reply(engines=(engine, fresh, operator)), LATER)
    found = between(Moment(10.0, reply(), STATS), now)
    counts = ("requested_chunks", "hit_chunks", "loaded_chunks", "saved_chunks", "evicted_chunks")
    assert [found[name] for name in counts] == [100, 75, 20, 10, 4]
    assert found["reclaimed_chunks"] == 3
    assert found["seconds"] == 2.0
    assert found["saved_bytes_s"] == 5 << 20
    assert found["loaded_bytes_s"] == 10 << 20  # 20 chunks of 1 MiB in 2 s
    asked = [(one["pid"], one["requested_chunks"], one["hit_chunks"]) for one in found["engines"]]
    assert asked == [(8, 50, 20), (10, 5, 5)]
    [tier] = found["tiers"]
    assert (tier["get_bytes_s"], tier["put_bytes_s"], tier["hit_chunks"]) == (2 << 20, 0, 1)


def test_an_engine_that_goes_is_told_of_for_a_minute_or_until_it_is_back() -> None:
    operator = replace(ENGINE, pid=11, state="operator")
    departures = Departures()

    def at(time_s: float, *engines: EngineStatus, more: int = 0) -> list[tuple[int, float]]:
        told = reply(engines=engines, engines_more=more)
        return [(one["pid"], one["gone_s"]) for one in departures.note(Moment(time_s, told, STATS))]

    second = replace(ENGINE, pid=9, instance=b"j" * 16)
    assert at(1.0, ENGINE, second, operator) == []
    assert at(2.0, ENGINE) == [(9, 0.0)]
    assert at(2.0 + GONE_S, ENGINE) == [(9, GONE_S)]
    assert at(3.0 + GONE_S, ENGINE) == []
    assert at(90.0) == [(8, 0.0)]
    assert at(91.0, ENGINE) == []
    assert at(92.0, more=5) == [], "it may be among those that are not listed"
    came = replace(operator, state="connected")
    assert at(93.0, came) == []
    assert at(94.0, operator) == at(95.0) == [], "a command that asked something and ended"


def test_of_a_new_server_everything_counts() -> None:
    other = reply(server=replace(SERVER, epoch=b"f" * 16))
    found = between(Moment(10.0, reply(), LATER), Moment(11.0, other, STATS))
    assert (found["requested_chunks"], found["saved_chunks"]) == (200, 14)
    assert found["engines"][0]["requested_chunks"] == 100


@pytest.mark.parametrize("stats", [{}, {"lookup_chunks": 5}])
def test_nothing_is_ever_negative(stats: dict[str, int]) -> None:
    empty = reply(namespaces=(), engines=(), tiers=())
    found = between(Moment(10.0, reply(), LATER), Moment(10.0, empty, stats))
    assert found["seconds"] > 0
    assert found["requested_chunks"] == found["loaded_bytes_s"] == found["saved_bytes_s"] == 0

"""Each kind of thing that can be left behind is seen, and by whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from adapter.conformance.schedules.leaks import GAUGES, HELD, of_host, of_kvkeep
from adapter.conformance.schedules.subject import Look

pytestmark = pytest.mark.torch

CLEAN = Look(8, 8, {"held_pages": 0}, dict.fromkeys(GAUGES, 0), "")


def test_nothing_left_is_nothing_told() -> None:
    assert of_kvkeep([CLEAN, CLEAN]) == of_host([CLEAN, CLEAN]) == []


@pytest.mark.parametrize("gauge", GAUGES)
def test_what_the_server_still_holds_is_a_leak(gauge: str) -> None:
    seen = replace(CLEAN, server=CLEAN.server | {gauge: 2})
    assert of_kvkeep([seen]) == [f"{gauge}=2"]
    assert of_host([seen]) == []


def test_a_gauge_that_is_missing_is_no_proof() -> None:
    values = {name: 0 for name in GAUGES if name != "leases"}
    assert of_kvkeep([replace(CLEAN, server=values)]) == ["leases=missing"]


@pytest.mark.parametrize("name", HELD)
def test_what_a_rank_still_holds_is_a_leak(name: str) -> None:
    looks = [CLEAN, replace(CLEAN, adapter={name: 1})]
    assert of_kvkeep(looks) == [f"rank 1: {name}=1"]
    assert of_host(looks) == []


def test_lost_pages_and_a_dead_executor_are_seen_of_any_connector() -> None:
    foreign = replace(CLEAN, adapter={}, server={})
    assert of_host([foreign]) == []
    assert of_host([foreign, replace(foreign, free_pages=7)]) == ["rank 1: 1 pages of the host"]
    dead = [replace(foreign, died_of="OSError()", free_pages=0)]
    assert of_host(dead) == of_kvkeep(dead) == ["rank 0 died of OSError()"]


def test_a_server_that_is_silent_proves_nothing() -> None:
    assert of_kvkeep([replace(CLEAN, server={})]) == ["a server that does not answer"]

"""Random schedules with any connector. A wrong bit is seen in each kind of engine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.kit.checks_suite import chosen, plays_alone, plays_attention_dp
from adapter.conformance.kit.verdict import NO_ADP, Outcome, unseen
from tests.adapter.conformance.kit.breaching import SUITE, Kit

pytestmark = pytest.mark.torch


ONE_RANK = "random schedules, one rank"


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=() if rule == ONE_RANK else pytest.mark.slow) for rule in SUITE],
)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, SUITE[rule])


def test_load_modes_count_for_our_connector_alone_and_each_combination_comes_once() -> None:
    ours, theirs = (chosen(("1",), is_ours, 7) for is_ours in (True, False))
    assert len(set(ours)) == len(ours) >= len(theirs) > 10
    assert {one.mode for one in ours} == {"auto", "sync", "async", "layerwise"}
    assert len({(o.epoch, o.lifecycle, o.layout, o.ranks) for o in theirs}) == len(theirs)
    assert chosen(("1",), True, 8) != ours == chosen(("1",), True, 7)


def test_jobs_of_four_come_last() -> None:
    ranks = [one.ranks for one in chosen(("tp2", "tp4"), True, 7)]
    assert set(ranks) == {"tp2", "tp4"}
    assert ranks == sorted(ranks)


def test_where_every_engine_is_refused_no_server_is_blamed(kit: Kit) -> None:
    found = plays_alone(kit.bench("Refusing"))
    assert found.outcome is Outcome.UNSEEN
    assert "not on this machine" in found.evidence
    assert "server" not in found.evidence


def test_ranks_are_not_played_with_who_does_not_take_them(kit: Kit) -> None:
    assert plays_attention_dp(kit.bench("Plain")) == unseen(NO_ADP)


def test_an_engine_that_is_refused_is_told_and_others_take_its_place(kit: Kit) -> None:
    bench = kit.bench("Folder")
    # One whose first engine has layer groups, which that connector does not take.
    bench.seed = next(
        seed for seed in range(1000) if chosen(("1",), False, seed)[0].layout == "v2_groups"
    )
    found = plays_alone(bench)
    assert found.outcome is Outcome.HELD
    assert "refused: " in found.evidence
    assert "2 layer groups" in found.evidence
    assert "1 combinations, 1 schedules" in found.evidence

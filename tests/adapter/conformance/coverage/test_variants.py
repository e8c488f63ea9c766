"""A run over all combinations plays every variant, of few combinations in turn."""

from __future__ import annotations

import pytest

from adapter.conformance.coverage.combine import combinations, legal_combinations
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.coverage.variants import VARIANTS, variant_of, variants_of
from adapter.conformance.host.options import HostOptions


@pytest.mark.parametrize("seed", [0, 1, 7, 1 << 30])
def test_a_run_over_all_combinations_plays_each_variant(seed: int) -> None:
    played = {variant_of(one, seed).name for one in combinations()}
    few = {
        "direct preemption",
        "aggressive, direct preemption",
    }  # of fewer combinations than variants
    assert {variant.name for variant in VARIANTS} - few <= played
    turns = {variant_of(one, seed + turn).name for one in combinations() for turn in range(4)}
    assert turns == {variant.name for variant in VARIANTS}


def test_without_a_seed_it_is_the_usual_one() -> None:
    drafts = Combination("E2", "drafts", "v1", "auto", "1")
    assert variant_of(drafts, None).options == {"num_drafts": 2, "overlap": True}
    assert variant_of(Combination("E4", "plain", "v2_one", "sync", "1"), None).options == {}


def test_a_combination_turns_through_all_of_its_variants() -> None:
    for one in legal_combinations():
        those = variants_of(one)
        assert {variant_of(one, seed) for seed in range(len(those))} == set(those)
        for variant in those:
            assert set(variant.options) <= set(vars(HostOptions()))
            assert not (one.lifecycle == "early_stop" and variant.options.get("overlap") is False)

"""The document, and what counts as wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from adapter.conformance.agentic.outcome import Outcome
from adapter.conformance.agentic.rig import Played
from tests.adapter.conformance.agentic.played import outcome, perfect

pytestmark = pytest.mark.torch

MUST_SHOW = {
    *("blocks", "hits", "ratio", "per_turn", "ttft_speedup_modelled"),
    *("ttft_speedup_measured_load", "restart_ratio", "bit_exact", "load_bytes", "load_gb_per_s"),
}


def test_the_document_says_all_that_is_to_be_shown() -> None:
    document = json.loads(json.dumps(outcome().document()))
    assert document.keys() > MUST_SHOW
    assert (document["blocks"], document["hits"], document["ratio"]) == (3096, 2684, 0.8669)
    assert document["ttft_speedup_modelled"] == 6.545
    assert 1 < document["ttft_speedup_measured_load"] < 6.545
    assert document["load_bytes"] == 2684 * 32 * 128 * 1024
    assert document["load_gb_per_s"] == pytest.approx(4.19, abs=0.01)  # 4 MiB in 1 ms
    assert document["restart_ratio"] == 1.0
    assert document["answers_saved"]["ratio"] == 0.9522
    assert document["wrong"] == []
    assert len(document["cumulative"]) == 144


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hit_blocks": 3}, "request 5 hit 3, not 4"),
        ({"hit_blocks": 5}, "request 5 hit 5, not 4"),
        ({"device_blocks": 1}, "request 5 reused 1 of its own"),
    ],
)
def test_one_request_that_went_otherwise_is_named(change: dict[str, int], said: str) -> None:
    good = outcome()
    seen = list(good.first.seen)
    seen[4] = replace(seen[4], **change)
    verified = sum(one.hit_blocks + one.device_blocks for one in seen)
    bad = replace(good, first=Played(seen, verified))
    assert bad.wrong() == [f"prompts saved: {said}"]


def test_a_block_that_nobody_compared_is_not_bit_exact() -> None:
    good = outcome()
    bad: Outcome = replace(good, first=replace(good.first, verified_blocks=2683))
    assert not bad.is_bit_exact
    assert bad.wrong() == ["not every loaded block was compared"]


def test_a_second_engine_that_finds_too_little() -> None:
    good = outcome()
    bad = replace(good, again=perfect(good.scale.workload))
    assert bad.restart_ratio == pytest.approx(0.8669, abs=1e-4)
    assert "0.8669" in bad.wrong()[0]

"""Rows 1 to 5 and 8 of the host contract's §12: what the peer offers, loads and stores wrongly."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit import checks_loads, checks_offers, checks_saves
from adapter.conformance.kit.bench import BLOCK, Bench, same, text
from adapter.conformance.kit.verdict import Outcome

pytestmark = pytest.mark.torch


def test_row_01_a_full_hit_leaves_a_token_to_compute(bench: Bench) -> None:
    prompt = text(3 * BLOCK, seed=1)
    with bench.engine() as seen:
        seen.store(prompt, 2)
        result = seen.ask(prompt, 2)
    assert result.num_loaded_tokens == 2 * BLOCK  # not 3: the host's check is prompt_len > hit
    assert same(result, bench.expected(prompt, 2))
    verdict = checks_offers.leaves_a_token_and_offers_whole_blocks(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence


def test_row_02_a_partial_hit_loads_exactly_what_matched(bench: Bench) -> None:
    stored = text(3 * BLOCK + 1, seed=2)
    prompt = [*stored[: 2 * BLOCK], *text(3 * BLOCK, seed=3)]
    with bench.engine() as seen:
        seen.store(stored)
        result = seen.ask(prompt, 3)
        assert seen.host.error is None
    assert result.num_loaded_tokens == 2 * BLOCK
    assert same(result, bench.expected(prompt, 3))


def test_row_03_a_load_begins_behind_the_device_match(bench: Bench) -> None:
    verdict = checks_loads.writes_only_what_was_offered(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence


def test_row_04_chunked_prefill_publishes_computed_blocks_only(bench: Bench) -> None:
    verdict = checks_saves.saves_only_what_was_computed(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence


def test_row_05_generated_blocks_are_stored(bench: Bench) -> None:
    verdict = checks_saves.saves_what_is_generated(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence


def test_row_05_generated_blocks_are_stored_without_rejected_drafts(bench: Bench) -> None:
    prompt = text(BLOCK + 1, seed=51)
    mtp = SimpleNamespace(decoding_type="MTP", num_nextn_predict_layers=3)
    with bench.engine(HostOptions(num_drafts=3), speculative_config=mtp) as seen:
        answer = seen.store(prompt, 3 * BLOCK).tokens
        talk = [*prompt, *answer, *text(3, seed=52)]
        result = seen.ask(talk, 2)
    assert result.num_loaded_tokens > 2 * BLOCK
    assert same(result, bench.expected(talk, 2))


def test_row_08_a_ragged_match_drops_the_load_and_keeps_the_save(bench: Bench) -> None:
    verdict = checks_saves.saves_what_follows_a_ragged_match(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence

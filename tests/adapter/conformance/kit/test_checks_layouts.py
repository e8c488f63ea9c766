"""Layer groups, replays, asynchronous loads. Each breach is seen, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.adapter.conformance.kit.breaching import LAYOUTS, Kit

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # Hits are counted here, and the machine may be busy with other tests.
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "500")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")


BREACHES = [
    (*one, why)
    for one, why in zip(
        LAYOUTS.items(),
        (
            "pages written that were not due",
            "blocks outside a window of 80 tokens were stored",
            "LoadError",
            "LoadError",
            "get_num_new_matched_tokens",
            "get_num_new_matched_tokens",
            "more often than announced",
        ),
        strict=True,
    )
]
FURTHER = [
    ("skips missing pages, keeps groups apart", "Mixing", "pages written that were not due"),
    ("reports each asynchronous load once", "Early", "logits differ"),
]


@pytest.mark.parametrize(("rule", "name", "why"), BREACHES + FURTHER)
def test_a_breach_is_seen(rule: str, name: str, why: str, kit: Kit) -> None:
    kit.assert_blamed(rule, name, why)


@pytest.mark.parametrize("rule", LAYOUTS)
def test_a_sound_connector_is_held_to_it(rule: str, kit: Kit) -> None:
    kit.assert_held(rule, "Kvkeep")


@pytest.mark.parametrize("rule", LAYOUTS)
def test_a_connector_without_layer_groups_is_not_blamed(rule: str, kit: Kit) -> None:
    kit.assert_not_blamed(rule)

"""The device in the connector's threads. The breach is seen."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.kit.verdict import Outcome
from tests.adapter.conformance.kit.breaching import DEVICE, Kit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", DEVICE)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, DEVICE[rule], "has not bound")


@pytest.mark.parametrize("rule", DEVICE)
def test_our_own_is_held_and_others_are_not_blamed(rule: str, kit: Kit) -> None:
    kit.assert_held(rule, "Kvkeep")
    assert kit.verdict(rule, "Sound").outcome is Outcome.UNSEEN

"""Hooks: how long they take, and what leaves them. Each breach is seen."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.adapter.conformance.kit.breaching import HOOKS, Kit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", HOOKS)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, HOOKS[rule])


@pytest.mark.parametrize("rule", HOOKS)
def test_a_sound_connector_is_not_blamed(rule: str, kit: Kit) -> None:
    kit.assert_not_blamed(rule)

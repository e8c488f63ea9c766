"""Media, models, formats, instances. Each breach is seen."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.adapter.conformance.kit.breaching import IDENTITY, Kit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", IDENTITY)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, IDENTITY[rule])

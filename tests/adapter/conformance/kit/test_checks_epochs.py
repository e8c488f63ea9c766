"""What differs by epoch, and what may be missing. Each breach is seen."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.adapter.conformance.kit.breaching import EPOCHS, Kit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", EPOCHS)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, EPOCHS[rule])

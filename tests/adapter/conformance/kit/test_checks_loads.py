"""Loads: what is written, when, and what follows a failure. Each breach is seen.

That sound connectors are not blamed is in ``test_command``, for one that owes nothing to ours.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.adapter.conformance.kit.breaching import LOADS, Kit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", LOADS)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, LOADS[rule])

"""Saves: what is stored, and what is owed to the host. Each breach is seen.

That sound connectors are not blamed is in ``test_command``, for one that owes nothing to ours.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.kit.verdict import NO_KEEPING, unseen
from tests.adapter.conformance.kit.breaching import SAVES, Kit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", SAVES)
def test_a_breach_is_seen(rule: str, kit: Kit) -> None:
    kit.assert_blamed(rule, SAVES[rule])


@pytest.mark.parametrize(
    "rule", ["outlives an idle executor", "keeps pages once, gives them back once"]
)
def test_where_no_pages_are_kept_nothing_is_praised(rule: str, kit: Kit) -> None:
    assert kit.verdict(rule, "Releasing") == unseen(NO_KEEPING)

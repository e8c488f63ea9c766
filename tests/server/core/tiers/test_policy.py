"""Policies: which of them write."""

from server.core.tiers.policy import Policy


def test_all_but_one_write() -> None:
    assert [policy for policy in Policy if not policy.writes] == [Policy.NONE]

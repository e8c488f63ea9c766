"""Three outcomes."""

from __future__ import annotations

from adapter.conformance.kit.verdict import Outcome, broken, held, unseen


def test_outcomes() -> None:
    assert held("a").outcome is Outcome.HELD
    assert broken("b").evidence == "b"
    assert unseen("c").outcome.value == "not observed"

"""Three outcomes."""

from __future__ import annotations

import pytest

from adapter.conformance.kit.verdict import Outcome, broken, held, shortened, unseen


def test_outcomes() -> None:
    assert held("a").outcome is Outcome.HELD
    assert broken("b").evidence == "b"
    assert unseen("c").outcome.value == "not observed"


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("one two", 7, "one two"),
        ("one two three", 9, "one two…"),
        ("one two three", 8, "one two…"),
        ("one two three", 12, "one two…"),
        ("one " + "x" * 20, 12, "one xxxxxxx…"),  # a word that is most of it is cut
    ],
)
def test_a_long_text_ends_behind_a_word(text: str, limit: int, short: str) -> None:
    assert shortened(text, limit) == short
    assert len(short) <= limit

from hypothesis import given
from hypothesis import strategies as st

from adapter.conformance.host.tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, decode, encode


@given(st.text())
def test_text_survives(text: str) -> None:
    tokens = encode(text)
    assert tokens[0] == BOS_ID
    assert all(0 <= token < VOCAB_SIZE for token in tokens)
    assert decode([*tokens, EOS_ID]) == text
    assert encode(text, add_bos=False) == tokens[1:]


def test_broken_bytes_are_shown_not_raised() -> None:
    assert decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"

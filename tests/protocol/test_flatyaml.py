"""Flat YAML: what is read, and what is passed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.flatyaml import scalars


def test_scalars_are_read_and_the_rest_is_passed_over() -> None:
    text = (
        "# comment: x\nurl: ipc:///a#b  # trailing\nquoted: 'a # b'\n"
        "none: ~\nempty:\nnothing: null\n"
        '  nested: 1\nno colon\nurl:notakey\n"\n- item: 1\nlast: "x" # said\nbare: # only this\n'
    )
    assert scalars(text) == {
        "url": "ipc:///a#b",
        "quoted": "a # b",
        "none": None,
        "empty": None,
        "nothing": None,
        "last": "x",
        "bare": None,
    }


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert all(key == key.strip() for key in scalars(text))

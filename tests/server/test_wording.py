"""Numbers of things: one, none, many, and words that do not take an s."""

from __future__ import annotations

from server.wording import counted


def test_one_is_said_as_one_and_all_else_as_several() -> None:
    assert counted(1, "chunk") == "1 chunk"
    assert counted(0, "chunk") == "0 chunks"
    assert counted(4810, "chunk") == "4,810 chunks"
    assert counted(1, "process", "processes") == "1 process"
    assert counted(2, "process", "processes") == "2 processes"

"""Misses whose reason the tiers still owe; test_prefetches sees them through the core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from server.core.namespaces import Owner
from server.core.tiers.late import MAX_LATE, defer
from server.core.tiers.misses import Miss
from server.core.tiers.runs import Run


def run_of() -> tuple[Run, list[Miss | None]]:
    index = SimpleNamespace()
    owner = cast(Owner, SimpleNamespace(index=index))
    return Run(owner=owner, index=index, start=0, parent_key=b"", keys=bytes(16)), []  # type: ignore[arg-type]


def test_what_is_known_is_told_at_once() -> None:
    run, told = run_of()
    run.count = 1
    defer(run, told.append)
    assert told == [Miss.DEADLINE], "a tier has it"
    run, told = run_of()
    run.is_over = True
    defer(run, told.append)
    run.why = Miss.TIER_ERROR
    defer(run, told.append)
    assert told == [None, Miss.DEADLINE]


def test_the_end_or_a_chunk_tells_the_rest() -> None:
    run, told = run_of()
    for _ in range(MAX_LATE + 1):
        defer(run, told.append)
    assert told == [Miss.DEADLINE], "more than are kept"
    first, *rest = run.passengers
    assert not first.moved(run)
    for one in rest:
        one.ended(run)
    assert told == [Miss.DEADLINE] * 2 + [None] * (MAX_LATE - 1)

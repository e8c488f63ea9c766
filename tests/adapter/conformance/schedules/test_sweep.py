"""A sweep plays schedules on the engine of a combination, and names it when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter import reports
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.coverage.variants import MANY_DRAFTS, variant_of
from adapter.conformance.schedules import sweep as sweeping
from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.play import PlayError, Tally
from adapter.conformance.schedules.reference import Reference
from adapter.conformance.schedules.service import Service, serving
from adapter.conformance.schedules.setups import setup_of
from adapter.conformance.schedules.sweep import Sweep, join
from adapter.requests import RequestTable
from tests.adapter.conformance.schedules.fakes import FakeAnswer, FakeSubject

pytestmark = pytest.mark.torch

ONE = Combination("E2", "plain", "v1", "sync", "1")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as one:
        yield one


def test_schedules_are_played_and_counted(service: Service, tmp_path: Path) -> None:
    tally = Tally()
    with Sweep(service.url, tmp_path) as sweep:
        sweep.run(ONE, range(3), tally)
    assert tally.schedules == 3
    assert tally.requests == tally.compared + tally.cancelled > 3
    assert tally.prompt_tokens > tally.loaded_tokens > 0


def test_a_wrong_answer_is_told_with_the_combination(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(Reference):
        def __call__(self, ask: Ask) -> Any:
            right = super().__call__(ask)
            return FakeAnswer(list(right.tokens), [one + 1e-6 for one in right.logits])

    monkeypatch.setattr(sweeping, "Reference", Wrong)
    with (
        Sweep(service.url, tmp_path) as sweep,
        pytest.raises(PlayError, match=rf"{ONE.test_id}: seed 7: logits of token 0 differ"),
    ):
        sweep.run(ONE, [7], Tally())


def test_an_adapter_that_goes_by_the_pages_reported_before_drafts_were_rejected_is_found_out(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = reports._advance

    def careless(table: RequestTable, *rest: Any) -> None:
        said, table.is_drafting = table.is_drafting, False
        advance(table, *rest)
        table.is_drafting = said

    monkeypatch.setattr(reports, "_advance", careless)
    drafts = Combination("E2", "drafts", "v1", "auto", "1")
    first = next(seed for seed in range(1000, 1003) if variant_of(drafts, seed) is MANY_DRAFTS)
    with (
        Sweep(service.url, tmp_path) as sweep,
        pytest.raises(PlayError, match=r"somebody else|differ|tokens \["),
    ):
        sweep.run(drafts, range(first, first + 20), Tally())


def test_references_are_shared_and_few(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Reference] = []

    class Counted(Reference):
        def __init__(self, engine: Any) -> None:
            super().__init__(engine)
            made.append(self)

    monkeypatch.setattr(sweeping, "Reference", Counted)
    monkeypatch.setattr(sweeping, "_MAX_REFERENCES", 1)
    with Sweep(service.url, tmp_path) as sweep:
        for layout in ("v1", "v1_private", "v1_bs32", "v1"):
            # Another mode than above, so that nothing of the same combination is stored yet.
            sweep.run(Combination("E2", "plain", layout, "auto", "1"), [1], Tally())
    assert len(made) == 3


def test_an_engine_that_does_not_join_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_JOIN_S", 0.1)
    subject = FakeSubject(values={"sessions": 0, "extents_unmapped": 0})
    with pytest.raises(PlayError, match="did not join"):
        join(subject, setup_of(ONE))
    subject.values["sessions"] = 1
    join(subject, setup_of(ONE))

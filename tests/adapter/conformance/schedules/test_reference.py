"""Each distinct request is asked once."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.reference import Reference
from tests.adapter.conformance.schedules.fakes import FakeSubject

pytestmark = pytest.mark.torch


def test_tenants_and_cancellations_share_an_answer_and_stops_do_not() -> None:
    engine = FakeSubject()
    reference = Reference(engine)
    ask = Ask((1, 2, 3), 2)
    first = reference(ask)
    assert reference(replace(ask, cache_salt="a", cancel_after_s=0.1)) is first
    assert engine.num_asked == 1
    reference(replace(ask, stop_ids=frozenset({1})))
    reference(replace(ask, max_new_tokens=3))
    reference(replace(ask, context_only=True))
    assert engine.num_asked == 4

"""Notes: stamps go up, an end of a write is handed on before what was seen after it."""

from __future__ import annotations

import pytest

from server.tiers.ledger import notes as all_notes
from server.tiers.ledger.notes import Notes

ONE, TWO, THREE = b"1", b"2", b"3"


def test_what_was_noted_is_taken_once() -> None:
    notes = Notes(10)
    asked = notes.tick()
    assert asked == 11
    notes.fly([ONE, TWO])
    assert notes.is_flying(ONE)
    notes.land([ONE], True)
    notes.land([TWO], False)
    assert not notes.is_flying(ONE)
    notes.used([ONE])
    notes.gone([THREE], asked)
    ended, used, gone = notes.take()
    assert (dict(ended), dict(used), dict(gone)) == ({ONE: 12}, {ONE: 13}, {THREE: 11})
    assert notes.take() == ({}, {}, {})
    assert notes.clock == 13
    notes.used([TWO])
    notes.again({ONE: 12})
    assert notes.take()[0] == {ONE: 12}


def test_writes_of_one_value_at_once_are_counted() -> None:
    notes = Notes(0)
    notes.fly([ONE])
    notes.fly([ONE])
    notes.land([ONE], True)
    assert notes.is_flying(ONE)
    notes.land([ONE], False)
    assert not notes.is_flying(ONE)
    notes.leave([ONE, ONE])
    notes.left([ONE])
    assert notes.is_leaving(ONE)
    notes.left([ONE])
    assert not notes.is_leaving(ONE)


def test_while_ends_of_writes_wait_nothing_later_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_notes, "AT_ONCE", 1)
    notes = Notes(0)
    notes.fly([ONE, TWO])
    notes.land([ONE, TWO], True)
    notes.used([ONE])
    notes.gone([TWO], 9)
    assert notes.take() == ({ONE: 1}, {}, {})
    assert notes.take() == ({TWO: 2}, {ONE: 3}, {TWO: 9})


def test_doubts_are_settled_some_time_after_the_store_answered() -> None:
    notes = Notes(0)
    notes.doubt([ONE, TWO])
    assert notes.settled(100.0, 60.0, 9) == []
    notes.doubt([TWO])  # a write of it ended so again
    assert notes.settled(159.0, 60.0, 9) == []
    assert notes.settled(160.0, 60.0, 9) == [ONE]
    assert notes.settled(218.0, 60.0, 9) == []
    assert notes.settled(219.0, 60.0, 9) == [TWO]


def test_what_is_noted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_notes, "MAX_NOTED", 2)
    notes = Notes(0)
    notes.used([ONE, TWO, THREE, ONE])
    notes.gone([ONE, TWO, THREE], 1)
    notes.doubt([ONE, TWO, THREE])
    _, used, gone = notes.take()
    assert (used, gone) == ({ONE: 4, TWO: 2}, {ONE: 1, TWO: 1})
    notes.settled(0.0, 1.0, 9)
    assert notes.settled(1.0, 1.0, 1) == [ONE]
    assert notes.settled(1.0, 1.0, 9) == [TWO]

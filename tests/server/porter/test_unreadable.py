"""Names of what could not be read: kept until they are written anew, or read."""

from __future__ import annotations

from server.core.tiers.parts import Status
from server.porter.unreadable import Unreadable
from server.tiers.interface import Name
from tests.server.porter.rows import SPACE, key

ONE, TWO, THREE = (Name(SPACE, key(number), 0) for number in (1, 2, 3))


def test_what_was_locked_is_told_once() -> None:
    names = Unreadable()
    assert names.take([ONE]) == []
    for name, status in ((ONE, Status.LOCKED), (TWO, Status.OK), (THREE, Status.CORRUPT)):
        names.came(name, status)
    assert names.take([THREE, ONE, TWO]) == [ONE]
    assert names.take([ONE]) == []


def test_what_can_be_read_again_is_forgotten() -> None:
    names = Unreadable()
    names.note([ONE, TWO])
    names.came(ONE, Status.ERROR)
    names.came(TWO, Status.OK)
    assert names.take([ONE, TWO]) == [ONE]


def test_they_are_bounded_and_the_first_goes_first() -> None:
    names = Unreadable(2)
    names.note([ONE, TWO, THREE])
    assert names.take([ONE, TWO, THREE]) == [TWO, THREE]

"""Turns of those who wait for one tier: by bytes, in order for each, nobody beyond a share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from server.core.tiers.fairness import FairQueue

WINDOW = 100


@dataclass
class One:
    flow: Hashable
    num_bytes: int
    number: int = 0


class Bench:
    """A queue, and what is on its way."""

    def __init__(self) -> None:
        self.queue: FairQueue[One] = FairQueue(WINDOW)
        self.flying: list[One] = []

    def fits(self, num_bytes: int) -> bool:
        return sum(one.num_bytes for one in self.flying) + num_bytes <= WINDOW

    def add(self, flow: str, num_bytes: int, count: int = 1) -> None:
        for number in range(count):
            self.queue.add(One(flow, num_bytes, number))

    def send(self) -> str:
        """Sends what fits; the flows of what went, in order."""
        sent = []
        while (one := self.queue.take(self.fits)) is not None:
            self.flying.append(one)
            sent.append(one)
        return "".join(str(one.flow) for one in sent)

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            self.queue.ended(self.flying.pop(0))


def test_one_alone_has_the_whole_window_in_its_order() -> None:
    bench = Bench()
    bench.add("a", 30, 5)
    assert bench.send() == "aaa"
    assert [one.number for one in bench.flying] == [0, 1, 2]
    assert not bench.queue.has_room("a", bench.fits)
    bench.end()
    assert bench.send() == "a"
    assert len(bench.queue) == 1
    bench.end(3)
    assert bench.send() == "a"
    assert bench.queue.has_room("a", bench.fits)


def test_a_little_of_one_goes_before_the_much_of_another_that_came_first() -> None:
    bench = Bench()
    bench.add("a", 20, 50)
    assert bench.send() == "aaaaa"
    bench.add("b", 2, 8)
    assert bench.send() == ""
    bench.end()
    assert bench.send() == "bbbbbbbb", "the first room that comes is theirs, all of it"
    bench.end(4)
    assert bench.send() == "aaaa", "what fits, for nobody else waits"
    bench.end(8)
    assert bench.send() == "a", "and all of it again without them"


def test_while_several_wait_none_has_more_than_a_share_and_one() -> None:
    bench = Bench()
    bench.add("b", 20, 50)
    bench.add("a", 20, 50)
    assert len(bench.send()) == 5
    for flow in "ab":
        assert sum(one.num_bytes for one in bench.flying if one.flow == flow) <= 60


def test_a_slow_read_of_one_that_wants_nothing_more_takes_only_its_own_room() -> None:
    bench = Bench()
    bench.add("slow", 20)
    assert bench.send() == "slow"
    bench.add("a", 10, 50)
    assert bench.send() == "a" * 8
    assert not bench.queue.has_room("a", bench.fits)
    bench.queue.ended(bench.flying.pop())
    bench.queue.empty()
    assert bench.queue.has_room("a", bench.fits), "beyond half of the window"


def test_two_that_want_much_get_the_same_whatever_their_pieces() -> None:
    bench = Bench()
    bench.add("a", 20, 100)
    bench.send()
    bench.add("b", 5, 400)
    got = {"a": 0, "b": 0}
    for _ in range(200):
        bench.end()
        before = len(bench.flying)
        bench.send()
        for one in bench.flying[before:]:
            got[str(one.flow)] += one.num_bytes
    assert abs(got["a"] - got["b"]) <= WINDOW


def test_who_comes_late_has_nothing_saved_up() -> None:
    bench = Bench()
    bench.add("a", 10, 100)
    for _ in range(30):
        bench.send()
        bench.end()
    bench.add("b", 10, 100)
    sent = ""
    for _ in range(40):
        bench.end()
        sent += bench.send()
    assert 15 <= sent.count("b") <= 30


def test_one_that_fits_in_nowhere_is_waited_for() -> None:
    bench = Bench()
    bench.add("a", 60)
    bench.send()
    bench.add("b", 90)
    bench.add("a", 10)
    assert bench.send() == "", "others do not take its room for ever"
    bench.end()
    assert sorted(bench.send()) == ["a", "b"]


def test_more_may_wait_only_where_others_will_make_way() -> None:
    bench = Bench()
    bench.add("a", 50, 3)
    bench.send()
    assert not bench.queue.has_room("a", bench.fits)
    assert bench.queue.has_room("b", bench.fits)
    bench.add("b", 30)
    assert bench.queue.has_room("b", bench.fits)
    bench.add("b", 30)
    assert not bench.queue.has_room("b", bench.fits), "its share waits already"


def test_emptied_it_still_knows_what_is_on_its_way() -> None:
    bench = Bench()
    bench.add("a", 40, 3)
    bench.add("b", 40)
    bench.send()
    assert {one.flow for one in bench.queue.empty()} == {"a"}
    assert len(bench.queue) == 0
    bench.add("a", 40)
    assert bench.send() == ""
    bench.end(2)
    assert bench.send() == "a"
    bench.end()
    assert bench.queue.has_room("a", bench.fits)
    assert bench.send() == ""

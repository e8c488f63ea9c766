"""One tier: turns, the window, answers exactly once, stalls, and porters that end or do not."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Fingerprint
from server.core import effects as fx
from server.core.clock import Clock, Timers
from server.core.config import SECOND_NS, TierConfig
from server.core.outbox import Outbox
from server.core.tiers.breaker import MAX_FAILURES
from server.core.tiers.listed import Listed
from server.core.tiers.parts import MAX_TEXT_BYTES, PART_DTYPE, Status
from server.core.tiers.tier import MAX_DROPS, MAX_WAITING, Tier

SPACE, OTHER = Fingerprint(b"s" * 16), Fingerprint(b"o" * 16)
OK, ABSENT, ERROR = bytes([Status.OK]), bytes([Status.ABSENT]), bytes([Status.ERROR])


def parts(number: int = 1, length: int = 100) -> NDArray[Any]:
    out = np.zeros(number, PART_DTYPE)
    out["length"] = length
    return out


class Bench:
    """A tier that is up, with a window of 1000 bytes, 400 of them for writes."""

    def __init__(self, up: bool = True) -> None:
        self.timers = Timers(Clock(SECOND_NS))
        self.outbox = Outbox(self.timers)
        config = TierConfig("t", window_bytes=1000)
        self.tier = Tier(fx.TierId(0), config, 400, self.timers, self.outbox, count(1))
        self.ended: list[tuple[str, bytes | None, int]] = []
        self.opens: list[bool] = []
        self.tier.changed = lambda tier: self.opens.append(tier.is_open)
        if up:
            self.tier.ready(0, 0)

    def is_open(self) -> bool:
        return self.tier.is_open

    def sent(self) -> list[Any]:
        return self.outbox.take()

    def over(self, name: str) -> Any:
        return lambda statuses, number: self.ended.append((name, statuses, number))

    def get(self, name: str, num_bytes: int = 100) -> None:
        self.tier.get(SPACE, parts(length=num_bytes), num_bytes, self.over(name))

    def put(self, name: str, num_bytes: int = 100, space: Fingerprint = SPACE) -> None:
        self.tier.put(space, parts(length=num_bytes), num_bytes, self.over(name))

    def wait(self, ns: int) -> None:
        self.timers.clock.advance(self.timers.clock.now_ns + ns)
        self.timers.run_due()

    def figure(self, name: str) -> int:
        return self.outbox.counters[f"tier_t_{name}"]


def test_it_is_silent_while_nothing_that_was_asked_of_it_ends_or_moves() -> None:
    bench = Bench()
    assert bench.tier.silent_ns == 0
    bench.put("a")
    bench.wait(3 * SECOND_NS)
    bench.put("b")
    assert bench.tier.silent_ns == 3 * SECOND_NS
    bench.tier.moves()
    bench.wait(SECOND_NS)
    assert bench.tier.silent_ns == SECOND_NS
    first, second = (effect.job for effect in bench.sent())
    bench.wait(SECOND_NS)
    bench.tier.done(first, OK)
    bench.wait(SECOND_NS)
    assert bench.tier.silent_ns == SECOND_NS
    bench.tier.done(second, OK)
    assert bench.tier.silent_ns == 0


def test_to_forget_takes_its_time_and_is_no_silence() -> None:
    bench = Bench()
    bench.put("a")
    bench.tier.drop(SPACE, b"", 1, bench.over("clear"))
    bench.wait(9 * SECOND_NS)
    assert bench.tier.silent_ns == 0
    _, drop = (effect.job for effect in bench.sent())
    bench.tier.done(drop, b"")
    bench.wait(SECOND_NS // 2)
    assert bench.tier.silent_ns == SECOND_NS // 2
    bench.tier.lost()
    assert bench.tier.silent_ns == 0


def test_a_long_look_for_values_is_no_silence_and_hides_none() -> None:
    bench = Bench()
    bench.tier.list_there(Listed.OF_SALT, SPACE, bench.over("list"))
    bench.wait(8 * SECOND_NS)
    assert bench.tier.silent_ns == 0
    bench.put("a")
    bench.wait(SECOND_NS // 2)
    assert bench.tier.silent_ns == SECOND_NS // 2


def test_reads_go_before_writes_within_the_window() -> None:
    bench = Bench()
    for name in "abc":
        bench.put(name, 200)
    bench.get("x", 400)
    bench.get("y", 400)
    bench.get("z", 50)
    assert [type(one) for one in bench.sent()] == [fx.TierPut, fx.TierPut, fx.TierGet]
    assert not bench.tier.may_put()
    assert not bench.tier.may_get()
    first = next(job for job in bench.tier.flying.values() if job.num_bytes == 400)
    bench.tier.done(first.effect.job, OK)
    assert [type(one) for one in bench.sent()] == [fx.TierGet, fx.TierGet]
    for job_id, job in list(bench.tier.flying.items()):
        if isinstance(job.effect, fx.TierPut):
            bench.tier.done(job_id, OK)
    assert [type(one) for one in bench.sent()] == [fx.TierPut]
    for job_id in list(bench.tier.flying):
        bench.tier.done(job_id, OK)
    assert sorted(name for name, _, _ in bench.ended) == ["a", "b", "c", "x", "y", "z"]
    assert bench.figure("get_bytes") == 850
    assert bench.figure("put_bytes") == 600


def test_a_job_that_is_larger_than_the_window_goes_alone() -> None:
    bench = Bench()
    bench.get("large", 5000)
    bench.get("small", 1)
    assert len(bench.sent()) == 1
    bench.put("write", 5000)
    assert len(bench.sent()) == 1  # one write is always let through
    bench.put("more", 1)
    bench.tier.done(fx.JobId(1), OK)
    assert [type(one) for one in bench.sent()] == [fx.TierGet]
    bench.tier.done(fx.JobId(3), OK)
    assert [type(one) for one in bench.sent()] == [fx.TierPut]


def test_statuses_are_counted_by_kind_and_wrong_answers_are_errors() -> None:
    bench = Bench()
    bench.tier.get(SPACE, parts(4), 400, bench.over("a"))
    bench.tier.done(fx.JobId(1), bytes([Status.OK, Status.ABSENT, Status.CORRUPT, Status.ERROR]))
    assert [bench.figure(name) for name in ("get_bytes", "absent", "corrupt", "errors")] == [
        100,
        1,
        1,
        1,
    ]
    bench.tier.get(SPACE, parts(2), 200, bench.over("b"))
    bench.tier.done(fx.JobId(2), OK)
    assert bench.ended[1] == ("b", 2 * ERROR, 0)
    bench.wait(5_000_000)
    bench.tier.put(SPACE, parts(1), 100, bench.over("c"))
    bench.wait(5_000_000)
    bench.tier.done(fx.JobId(3), bytes([Status.NO_ROOM]))
    assert (bench.figure("no_room"), bench.figure("put_us")) == (1, 5000)
    bench.tier.get(SPACE, parts(2), 200, bench.over("d"))
    bench.tier.done(fx.JobId(4), bytes([Status.LOCKED, Status.OK]))
    assert (bench.figure("locked"), bench.figure("get_bytes")) == (1, 200)


def test_what_a_tier_that_is_down_is_asked_ends_at_once() -> None:
    bench = Bench(up=False)
    bench.get("get")
    bench.put("put")
    bench.tier.probe(SPACE, b"k" * 16, 1, bench.over("probe"))
    bench.tier.drop(SPACE, b"", 1, bench.over("drop"))
    assert not bench.sent()
    assert [(statuses, number) for _, statuses, number in bench.ended] == [(None, 0)] * 4


def test_failures_in_a_row_end_what_waits_and_a_check_up_opens_it_again() -> None:
    bench = Bench()
    for number in range(MAX_FAILURES + 10):
        bench.get(str(number), 300)
    for _ in range(MAX_FAILURES):
        bench.tier.done(next(iter(bench.tier.flying)), ERROR)
    assert not bench.is_open()
    assert bench.opens == [True, False]
    assert len(bench.ended) == MAX_FAILURES + 10 - len(bench.tier.flying)
    bench.sent()
    bench.wait(SECOND_NS)
    (check,) = bench.sent()
    assert isinstance(check, fx.TierHealth)
    bench.tier.checked(check.job, True, 5, 9)
    assert bench.is_open()
    assert bench.tier.figures()["tier_t_used_bytes"] == 5
    assert bench.figure("breaker_opens") == 1
    for job_id in list(bench.tier.flying):
        bench.tier.done(job_id, OK)
    assert len(bench.ended) == MAX_FAILURES + 10


def test_a_tier_that_answers_nothing_is_left_alone_and_its_late_answer_counts() -> None:
    bench = Bench()
    bench.get("slow")
    bench.wait(2 * SECOND_NS - 1)
    assert bench.is_open()
    bench.wait(1)
    assert not bench.is_open()
    assert bench.figure("stalls") == 1
    assert not bench.ended
    bench.tier.done(fx.JobId(1), OK)
    assert bench.ended == [("slow", OK, 0)]


def test_a_slow_tier_that_goes_on_answering_stays_in_use_but_not_for_ever() -> None:
    bench = Bench()
    bench.get("stuck")
    for second in range(9):
        bench.get(str(second))
        bench.wait(SECOND_NS)
        bench.tier.done(max(bench.tier.flying), OK)
        assert bench.is_open()
    bench.wait(SECOND_NS)
    assert not bench.is_open()


def test_a_read_that_moves_stays_in_use_until_it_stops_or_takes_too_long() -> None:
    bench = Bench()
    bench.get("slow", 1000)
    for _ in range(3):
        bench.wait(2 * SECOND_NS - 1)
        bench.tier.moves()
    bench.wait(2 * SECOND_NS - 1)
    assert bench.is_open()
    bench.wait(1)
    assert not bench.is_open()


def test_moving_does_not_make_a_read_that_takes_too_long_a_good_one() -> None:
    bench = Bench()
    bench.get("stuck")
    for _ in range(9):
        bench.wait(SECOND_NS)
        bench.tier.moves()
    assert bench.is_open()
    bench.wait(SECOND_NS)
    assert not bench.is_open()


def test_a_write_that_takes_long_is_no_stall() -> None:
    bench = Bench()
    bench.put("slow")
    bench.wait(9 * SECOND_NS)
    assert bench.is_open()


def test_all_that_a_lost_porter_had_ends_once() -> None:
    bench = Bench()
    bench.get("get")
    bench.put("put")
    bench.tier.probe(SPACE, b"k" * 16, 1, bench.over("probe"))
    bench.tier.drop(SPACE, b"", 1, bench.over("drop"))
    for _ in range(20):
        bench.get("more", 300)
    bench.tier.lost()
    assert len(bench.ended) == 24
    assert not bench.tier.flying
    assert bench.opens == [True, False]
    bench.sent()
    bench.tier.ready(0, 0)
    bench.wait(0)
    (check,) = bench.sent()
    bench.tier.checked(check.job, True, 0, 0)
    bench.get("again")
    assert len(bench.sent()) == 1


def test_what_touches_memory_of_a_stuck_porter_ends_with_it_and_the_rest_at_once() -> None:
    bench = Bench()
    bench.get("get")
    bench.put("put")
    bench.tier.probe(SPACE, b"k" * 16, 1, bench.over("probe"))
    bench.tier.strand(7)
    assert [name for name, _, _ in bench.ended] == ["probe"]
    assert bench.tier.figures()["tier_t_stuck"] == 1
    bench.tier.ready(0, 0)
    bench.tier.gone(6)
    assert len(bench.ended) == 1
    bench.tier.gone(7)
    assert bench.ended[1:] == [("get", ERROR, 0), ("put", ERROR, 0)]
    bench.tier.gone(7)
    assert len(bench.ended) == 3


def test_waiting_writes_of_one_namespace_can_be_taken_back() -> None:
    bench = Bench()
    bench.put("flies", 400)
    bench.put("mine", 400)
    bench.put("others", 400, OTHER)
    bench.tier.cancel_puts(SPACE)
    assert bench.ended == [("mine", None, 0)]
    bench.sent()
    bench.tier.done(fx.JobId(1), OK)
    assert [one.fingerprint for one in bench.sent()] == [OTHER]


def test_what_waits_is_bounded() -> None:
    bench = Bench()
    for _ in range(MAX_WAITING + 5):
        bench.get("g", 1000)
    assert len(bench.ended) == 4
    for _ in range(MAX_DROPS + 3):
        bench.tier.drop(SPACE, b"", 1, bench.over("d"))
    assert sum(name == "d" for name, _, _ in bench.ended) == 3


def test_a_namespace_is_described_once_until_it_is_cleared_or_another_porter_comes() -> None:
    bench = Bench()
    bench.sent()

    def kept() -> list[bytes]:
        bench.tier.keep(SPACE, b"what it is")
        return [job.text for job in bench.sent() if isinstance(job, fx.TierKeep)]

    assert (kept(), kept()) == ([b"what it is"], [])
    bench.tier.drop(SPACE, b"k" * 16, 1, bench.over("drop"))
    assert kept() == []
    bench.tier.drop(SPACE, b"", 1, bench.over("clear"))
    assert kept() == [b"what it is"]
    bench.tier.ready(0, 0)
    assert kept() == [b"what it is"]
    bench.tier.keep(OTHER, b"x" * (MAX_TEXT_BYTES + 1))
    assert not [job for job in bench.sent() if isinstance(job, fx.TierKeep)]


def test_what_is_not_forgotten_yet_shuts_nobody_else_out() -> None:
    """A store may need many calls for a large namespace."""
    bench = Bench()
    for _ in range(2 * MAX_FAILURES):
        bench.tier.drop(SPACE, b"", 1, bench.over("clear"))
        (job,) = bench.sent()
        bench.tier.done(job.job, None)
    assert bench.is_open()
    assert bench.figure("errors") == 2 * MAX_FAILURES


def test_what_cannot_be_listed_or_kept_says_nothing_of_how_a_tier_reads() -> None:
    bench = Bench()
    for number in range(2 * MAX_FAILURES):
        bench.tier.list_there(Listed.NEXT, SPACE, bench.over(f"list {number}"))
    for number in range(MAX_FAILURES):
        bench.tier.touch(SPACE, b"k" * 16, 1, bench.over(f"touch {number}"))
    bench.tier.keep(SPACE, b"what it is")
    for job in bench.sent():
        if isinstance(job, fx.Asked):
            bench.tier.done(job.job, None)
    assert bench.is_open()
    assert [statuses for _, statuses, _ in bench.ended] == [None] * (3 * MAX_FAILURES)
    bench.tier.lost()
    bench.tier.list_there(Listed.NEXT, SPACE, bench.over("down"))
    assert bench.ended[-1] == ("down", None, 0)

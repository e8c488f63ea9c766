"""What a registered process says, when, and what it concludes from the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from adapter.duties import PAUSE_NS, WHOLE_NS, Duties
from adapter.household import Household
from adapter.mapper import MapReport, Origin
from adapter.outbox import EndNotice
from protocol.errors import ErrorCode, KvkeepError, ReplyError, UnreachableError
from protocol.ids import ArenaId, Epoch, Fingerprint, RequestKey, SessionId
from protocol.messages import (
    Body,
    Done,
    EndSession,
    Heartbeat,
    HeartbeatReply,
    Mapped,
    Ping,
    Released,
    Request,
    Unregister,
)
from tests.adapter.test_household import household

ORIGIN = Origin(Epoch(b"e" * 16), ArenaId(b"a" * 16), SessionId(4), Fingerprint(b"f" * 16))
BEAT_S = 2.0


class Line:
    """Stands where the calls stand: keeps what was sent, answers when told."""

    def __init__(self) -> None:
        self.room = 32
        self.sent: list[tuple[Request, Callable[[Body | None, KvkeepError | None], None]]] = []
        self.renewed: list[bool] = []

    def has_room(self) -> bool:
        return self.room > len(self.sent)

    def send(self, body: Request, _: float, done: Any) -> bool:
        if not self.has_room():
            return False
        self.sent.append((body, done))
        return True

    def renew(self, _: str, __: int, is_late: bool = True) -> None:
        self.renewed.append(is_late)

    def answer(self, kind: type[Request], body: Body | None, code: ErrorCode | None = None) -> None:
        index = next(i for i, (sent, _) in enumerate(self.sent) if isinstance(sent, kind))
        _, done = self.sent.pop(index)
        done(body, None if code is None else ReplyError(code, "as the test wants it"))

    def bodies(self, kind: type[Request]) -> list[Any]:
        return [body for body, _ in self.sent if isinstance(body, kind)]


class Bench:
    def __init__(self, house: Household) -> None:
        self.house = house
        self.line = Line()
        self.duties = Duties(house, self.line, 1, ORIGIN, BEAT_S)  # type: ignore[arg-type]

    def turn(self, now_ns: int | None = None, live: Any = None) -> None:
        self.duties.turn(time.monotonic_ns() if now_ns is None else now_ns, live)

    def notice(self, number: int) -> EndNotice:
        notice = EndNotice(ORIGIN.epoch, RequestKey(number))
        self.house.outbox.put(notice)
        return notice


@pytest.fixture
def bench() -> Iterator[Bench]:
    with zmq.Context() as context:
        yield Bench(household(context))


def test_beats_at_once_and_then_as_often_as_the_server_wants(bench: Bench) -> None:
    bench.turn(1000)
    bench.turn(1000 + int(BEAT_S * 1e9) - 1)
    assert len(bench.line.bodies(Ping)) == 1
    assert bench.duties.next_ns(False) == 1000 + int(BEAT_S * 1e9)
    bench.turn(1000 + int(BEAT_S * 1e9), lambda: [1, 2])
    assert bench.line.bodies(Heartbeat) == [
        Heartbeat(session=4, requests=b"\x01" + bytes(7) + b"\x02" + bytes(7))
    ]


def test_a_heartbeat_of_another_epoch_is_doubt(bench: Bench) -> None:
    bench.turn(1000, list)
    bench.line.answer(Heartbeat, HeartbeatReply(epoch=ORIGIN.epoch))
    assert not bench.house.membership.is_doubted(1)
    bench.turn(10**10, list)
    bench.line.answer(Heartbeat, HeartbeatReply(epoch=b"x" * 16))
    assert bench.house.membership.is_doubted(1)


def test_nothing_is_due_while_there_is_no_room(bench: Bench) -> None:
    bench.line.room = 0
    bench.notice(1)
    bench.turn()
    assert bench.duties.next_ns(False) is None
    assert len(bench.house.outbox) == 1


def test_notices_go_out_as_far_as_there_is_room_and_come_back_when_put_off(bench: Bench) -> None:
    bench.line.room = 3
    for number in range(5):
        bench.notice(number)
    bench.turn()
    assert [body.request for body in bench.line.bodies(EndSession)] == [0, 1, 2]
    bench.line.answer(EndSession, Released(chunks=1))
    bench.line.answer(EndSession, None, ErrorCode.BUSY)
    bench.turn(time.monotonic_ns())
    assert [body.request for body in bench.line.bodies(EndSession)] == [2]
    paused_ns = bench.duties.next_ns(False)
    assert paused_ns is not None
    bench.turn(time.monotonic_ns() + PAUSE_NS)
    assert [body.request for body in bench.line.bodies(EndSession)] == [2, 1]
    assert len(bench.line.bodies(Ping)) == 1  # the heartbeat took the third place


def test_an_unreachable_answer_keeps_the_notice(bench: Bench) -> None:
    bench.notice(1)
    bench.turn()
    _, done = next(pair for pair in bench.line.sent if isinstance(pair[0], EndSession))
    done(None, UnreachableError(ErrorCode.DEADLINE_EXCEEDED, "late"))
    assert len(bench.house.outbox) == 1


def test_consequences_of_refusals(bench: Bench) -> None:
    for code in (ErrorCode.UNKNOWN_LEASE, ErrorCode.UNAUTHENTICATED, ErrorCode.UNKNOWN_SESSION):
        bench.notice(1)
        bench.turn(10**15)
        bench.line.answer(EndSession, None, code)
    assert bench.house.journal.counters()["notices_refused"] == 1
    assert bench.line.renewed == [False]
    assert bench.house.membership.is_doubted(1)
    assert len(bench.house.outbox) + len(bench.line.bodies(EndSession)) == 2


def test_reports_carry_the_newest_state_of_each_extent(bench: Bench) -> None:
    other = Origin(Epoch(b"x" * 16), ORIGIN.arena, SessionId(1), ORIGIN.fingerprint)
    bench.duties.extents_done(
        [MapReport(ORIGIN, 1, True), MapReport(ORIGIN, 2, True), MapReport(other, 3, True)]
    )
    bench.turn()
    assert bench.line.bodies(Mapped)[0].mapped == b"\x01\0\0\0\x02\0\0\0"
    bench.duties.extents_done([MapReport(ORIGIN, 2, False)])
    bench.turn()
    assert len(bench.line.bodies(Mapped)) == 1
    bench.line.answer(Mapped, Done())
    bench.turn()
    (report,) = bench.line.bodies(Mapped)
    assert (report.mapped, report.unmapped) == (b"", b"\x02\0\0\0")
    bench.line.answer(Mapped, Done())
    bench.turn()
    assert bench.line.bodies(Mapped) == []


@pytest.mark.parametrize("code", [None, ErrorCode.UNKNOWN_SESSION])
def test_farewell_is_said_once_and_settled_by_an_answer(
    bench: Bench, code: ErrorCode | None
) -> None:
    bench.duties.ask_to_leave(1)
    bench.duties.ask_to_leave(2)
    assert bench.line.bodies(Unregister) == [Unregister(session=4)]
    assert not bench.duties.has_left
    bench.line.answer(Unregister, None if code else Done(), code)
    assert bench.duties.has_left


def test_a_farewell_put_off_is_said_again_after_a_pause(bench: Bench) -> None:
    bench.duties.ask_to_leave(time.monotonic_ns())
    bench.line.answer(Unregister, None, ErrorCode.BUSY)
    assert not bench.duties.has_left
    bench.duties.ask_to_leave(time.monotonic_ns())
    assert bench.line.bodies(Unregister) == []
    due_ns = bench.duties.next_ns(True)
    assert due_ns is not None
    bench.duties.ask_to_leave(due_ns)
    assert len(bench.line.bodies(Unregister)) == 1


def beat(bench: Bench, at_ns: int, missing: int) -> None:
    bench.turn(at_ns, live=list)
    reply = HeartbeatReply(epoch=ORIGIN.epoch, missing_ranks=missing)
    bench.line.answer(Heartbeat, reply)


def test_ranks_that_stay_away_are_named_once_and_not_at_once(bench: Bench) -> None:
    beat(bench, 1, 3)
    beat(bench, WHOLE_NS, 3)
    assert "ranks_missing" not in bench.house.journal.counters()
    beat(bench, 2 * WHOLE_NS, 0)
    assert "ranks_missing" not in bench.house.journal.counters()
    beat(bench, 3 * WHOLE_NS, 2)
    beat(bench, 4 * WHOLE_NS, 2)
    assert bench.house.journal.counters()["ranks_missing"] == 1

"""Which replies get a line, at which level, and that it names the request."""

from __future__ import annotations

import logging

import pytest

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.logline import about_of
from protocol.messages import Op, StopReason, StoreReply
from server.core.effects import PeerId, SendReply
from server.core.told import Told
from server.shell.complaints import Complaints
from server.shell.teller import Teller, about

STORE = Told(int(Op.STORE), 9, 7, b"i" * 16, b"f" * 16, chunks=5)


def tell(teller: Teller, told: Told) -> None:
    teller.tell(SendReply(PeerId(b"p"), b"", told.op, 1, told), told, 2)


def test_a_refusal_is_no_complaint_and_one_line_for_each_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints(interval_s=3600)
    teller = Teller(complaints)
    with caplog.at_level(logging.INFO, "kvkeep.server"):
        for code in (ErrorCode.BUSY, ErrorCode.BUSY, ErrorCode.NO_ROOM):
            tell(teller, STORE._replace(error=RequestError(code, "why")))
    assert complaints.counts() == {}
    assert [one.getMessage() for one in caplog.records] == [
        f"request_refused: {name}: why [STORE, message 9, request 7, engine {'69' * 16}, "
        "namespace 666666666666]"
        for name in ("BUSY", "NO_ROOM")
    ]
    assert about_of(caplog.records[0]).event == "request_refused"


def test_at_warning_a_refusal_costs_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvkeep.server"):
        tell(Teller(Complaints()), STORE._replace(error=RequestError(ErrorCode.BUSY, "why")))
    assert caplog.records == []


def test_a_fault_of_ours_and_a_failed_copy_are_complaints() -> None:
    complaints = Complaints()
    teller = Teller(complaints)
    tell(teller, STORE._replace(error=KvkeepError(ErrorCode.INTERNAL, "its log says why")))
    for stop in (StopReason.COPY_FAILED, StopReason.NO_ROOM):
        tell(teller, STORE._replace(answer=StoreReply(held=0, copied=1, stop=stop)))
    assert complaints.counts() == {"request_failed": 1, "store_cut": 1}


def test_only_what_is_to_be_traced_reaches_the_tracer() -> None:
    noted: list[tuple[Told, int, int]] = []

    class Tracer:
        def note(self, told: Told, begun_ns: int, now_ns: int) -> None:
            noted.append((told, begun_ns, now_ns))

    teller = Teller(Complaints())
    traced = STORE._replace(traceparent="00-x", answer=StoreReply(held=1, copied=4))
    tell(teller, traced)
    teller.tracer = Tracer()
    tell(teller, STORE)
    tell(teller, traced)
    assert noted == [(traced, 1, 2)]


def test_a_tracer_that_breaks_keeps_no_reply_from_going() -> None:
    class Tracer:
        def note(self, told: Told, begun_ns: int, now_ns: int) -> None:
            raise ValueError("broken")

    complaints = Complaints()
    teller = Teller(complaints)
    teller.tracer = Tracer()
    tell(teller, STORE._replace(traceparent="00-x"))
    assert complaints.counts() == {"loop_fault": 1}


def test_a_peers_words_make_no_line_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    error = RequestError(ErrorCode.MALFORMED, "unknown field `a\nERROR made up\x1b[31m é`")
    with caplog.at_level(logging.INFO, "kvkeep.server"):
        tell(Teller(Complaints()), Told(0, 0, error=error))
    [line] = [one.getMessage() for one in caplog.records]
    assert line == "request_refused: MALFORMED: unknown field `a\\nERROR made up\\x1b[31m é`"


def test_an_unknown_operation_has_no_name() -> None:
    assert str(about(Told(0, 0))) == ""

"""The keeper's requests: HELLO, answers, renewal after time-outs, probes of the breaker."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from adapter import calls as calls_module
from adapter.breaker import Breaker
from adapter.calls import MAX_IN_FLIGHT, Calls
from adapter.journal import Journal
from protocol.errors import ErrorCode, KvkeepError, ReplyError, UnreachableError
from protocol.ids import InstanceId, Token
from protocol.messages import Body, Done, Op, Ping
from tests.adapter.responder import Responder, until


class Bench:
    """Calls to a responder, turned by the test."""

    def __init__(self, folder: Path) -> None:
        self.server = Responder(folder)
        self.server.__enter__()
        self.breaker = Breaker(lambda: None)
        self.journal = Journal(logging.getLogger("kvkeep.test"))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.answers: list[Body | KvkeepError | None] = []
        self.calls = self.connect(self.server.make_token(), self.server.epoch)

    def connect(self, token: Token, epoch: bytes) -> Calls:
        return Calls(
            self.context,
            self.server.url,
            token,
            epoch,
            InstanceId(os.urandom(16)),
            "test",
            self.breaker,
            self.journal,
        )

    def done(self, body: Body | None, error: KvkeepError | None) -> None:
        self.answers.append(body or error)

    def turn_until(self, condition: Callable[[], object]) -> None:
        def step() -> object:
            self.calls.turn(time.monotonic_ns())
            return condition()

        until(step)

    def greet(self) -> None:
        self.turn_until(lambda: self.calls.greeted)

    def close(self) -> None:
        self.calls.close()
        self.context.term()
        self.server.stop()


@pytest.fixture
def bench(short_dir: Path) -> Iterator[Bench]:
    bench = Bench(short_dir)
    yield bench
    bench.close()


def test_hello_comes_first_and_then_requests(bench: Bench) -> None:
    assert not bench.calls.send(Ping(), 1, bench.done)
    assert bench.calls.poll_events(time.monotonic_ns()) & zmq.POLLOUT
    bench.greet()
    assert not bench.calls.poll_events(time.monotonic_ns()) & zmq.POLLOUT
    assert bench.calls.send(Ping(), 1, bench.done)
    bench.turn_until(lambda: bench.answers)
    assert bench.answers == [Done()]
    assert bench.calls.next_ns(time.monotonic_ns()) is None


def test_what_may_be_in_flight_is_bounded(bench: Bench) -> None:
    bench.greet()
    bench.server.mute.add(Op.PING)
    sent = sum(bench.calls.send(Ping(), 5, bench.done) for _ in range(2 * MAX_IN_FLIGHT))
    assert sent == MAX_IN_FLIGHT
    assert not bench.calls.has_room()


def test_a_time_out_fails_all_trips_the_breaker_and_renews_the_connection(bench: Bench) -> None:
    bench.greet()
    bench.server.mute.add(Op.PING)
    first = bench.calls.dealer
    bench.calls.send(Ping(), 0.02, bench.done)
    bench.calls.send(Ping(), 60, bench.done)
    bench.turn_until(lambda: len(bench.answers) == 2)
    assert all(isinstance(answer, UnreachableError) for answer in bench.answers)
    assert bench.breaker.is_open
    assert bench.calls.dealer is not first
    bench.turn_until(lambda: not bench.breaker.is_open)
    assert bench.server.num_hellos == 2
    assert bench.journal.counters()["keeper_timeouts"] == 1


def test_probe_closes_a_breaker_that_somebody_else_tripped(bench: Bench) -> None:
    bench.greet()
    bench.breaker.trip("a call timed out", time.monotonic_ns())
    due_ns = bench.calls.next_ns(time.monotonic_ns())
    assert due_ns == bench.breaker.probe_at_ns()
    bench.turn_until(lambda: not bench.breaker.is_open)
    assert bench.server.num_hellos == 1


def test_a_slow_answer_to_a_probe_leaves_the_breaker_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "PROMPT_NS", 20_000_000)
    bench.greet()
    bench.server.delay_s[Op.PING] = 0.1
    bench.breaker.trip("slow", time.monotonic_ns())
    bench.turn_until(lambda: bench.journal.counters().get("probes") == 1)
    assert bench.breaker.is_open
    bench.server.delay_s.clear()
    bench.turn_until(lambda: not bench.breaker.is_open)
    assert bench.server.num_hellos == 1


def test_renewal_without_fault_of_the_server_leaves_the_breaker_closed(bench: Bench) -> None:
    bench.greet()
    bench.calls.renew("given up", time.monotonic_ns(), is_late=False)
    assert not bench.breaker.is_open
    bench.greet()
    assert bench.server.num_hellos == 2


@pytest.mark.parametrize("case", ["token", "epoch"])
def test_a_refused_hello_is_final(bench: Bench, case: str) -> None:
    bench.calls.close()
    if case == "token":
        bench.calls = bench.connect(Token(b"x" * 16), bench.server.epoch)
    else:
        bench.calls = bench.connect(bench.server.make_token(), b"x" * 16)
    bench.turn_until(lambda: bench.calls.refusal)
    expected = {"token": ErrorCode.UNAUTHENTICATED, "epoch": ErrorCode.STALE_EPOCH}
    assert isinstance(bench.calls.refusal, ReplyError)
    assert bench.calls.refusal.code == expected[case]
    assert not bench.calls.greeted
    assert not bench.calls.send(Ping(), 1, bench.done)


def test_an_unanswered_hello_is_said_again_on_a_fresh_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "HELLO_S", 0.05)
    bench.server.mute.add(Op.HELLO)
    bench.turn_until(lambda: len(bench.server.bodies(Op.HELLO)) >= 2)
    assert bench.breaker.is_open
    bench.server.mute.clear()
    bench.greet()
    bench.turn_until(lambda: not bench.breaker.is_open)

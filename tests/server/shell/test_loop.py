"""The loop with a real socket and peers; the core is one that does as the test says."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from protocol import endpoint as endpoints
from protocol import frames
from protocol.errors import ConfigError, ErrorCode
from protocol.messages import Op, Ping
from server.core.dispatch import Core
from server.core.effects import DropPoolOffer, Effect, PeerId, ProcessId, SendReply
from server.shell import clock
from server.shell.actions import Actions
from server.shell.complaints import Complaints
from server.shell.loop import (
    RECEIVE_QUEUE_FRAMES,
    Loop,
    ThreadDiedError,
    make_socket,
)
from server.shell.porters import Porters
from server.shell.reports import (
    DrainAsked,
    Here,
    ProcessQuiet,
    Report,
    Reporter,
)
from tests.faults import rawzmtp
from tests.server.shell.looping import Running, ScriptedCore, running_loop
from tests.wire.process import ROOT, wait_until


@pytest.fixture
def running(short_dir: Path) -> Iterator[Running]:
    yield from running_loop(short_dir)


_FIRST_ID = """
import zmq
from server.shell.loop import make_socket
context = zmq.Context()
router, dealer = make_socket(context), context.socket(zmq.DEALER)
router.bind("tcp://127.0.0.1:*")
dealer.connect(router.last_endpoint.decode())
dealer.send(b"")
print(router.recv_multipart()[0].hex())
context.destroy(linger=0)
"""


def test_nobody_knows_which_routing_id_comes_next() -> None:
    # Else any peer could take it first: libzmq aborts the process of a ROUTER when an id that it
    # would give out is taken.
    command = [sys.executable, "-c", _FIRST_ID]
    found = {subprocess.check_output(command, cwd=ROOT, text=True, timeout=60) for _ in range(3)}
    assert len(found) == 3
    assert all(len(one.strip()) == 10 and one.startswith("00") for one in found)


def test_messages_beyond_a_few_wait_in_the_senders_socket(short_dir: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = make_socket(context)  # that nobody reads
    url = f"ipc://{short_dir}/s"
    router.bind(url)
    try:
        with rawzmtp.greeted(url) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            sender.settimeout(1)
            message, num_sent = rawzmtp.frame(bytes(1 << 16)), 0
            with suppress(TimeoutError):
                while num_sent < 200:
                    sender.sendall(message)
                    num_sent += 1
        assert RECEIVE_QUEUE_FRAMES <= num_sent <= RECEIVE_QUEUE_FRAMES + 8
    finally:
        router.close()
        context.destroy(linger=0)


def test_the_socket_is_for_its_user_alone(running: Running) -> None:
    assert Path(running.url.removeprefix("ipc://")).stat().st_mode & 0o777 == 0o600


def test_requests_are_answered_and_each_gets_a_slice_of_work_beside_it(running: Running) -> None:
    dealer = running.connect()
    dealer.send(b"warm")
    assert dealer.recv() == b"echo warm"
    running.core.log.clear()
    running.core.slices = 10_000
    for number in range(20):
        dealer.send(b"%d" % number)
        assert dealer.recv() == b"echo %d" % number
    assert wait_until(lambda: running.core.slices == 0)
    log = running.core.log
    assert log.count("work") == 10_000
    first, last = log.index("request"), len(log) - log[::-1].index("request")
    assert last - first < 10_000 or first > 0  # requests did not wait for all of the work
    assert log[-1] == "work"


def test_time_from_a_request_to_its_answer_is_told_by_operation(running: Running) -> None:
    def waited(peer: PeerId, frame: bytes) -> None:
        begun_ns = clock.now_ns() - 3_000_000
        running.core.effects.append(SendReply(peer, b"late", int(Op.LOOKUP), begun_ns))

    running.core.on_request = waited
    dealer = running.connect()
    dealer.send(b"x")
    assert [dealer.recv(), dealer.recv()] == [b"late", b"echo x"]
    told = running.loop.latency.told()
    assert set(told) == {"LOOKUP"}  # what was refused before it was a request has no time
    assert told["LOOKUP"].count == 1
    assert 3_000 <= told["LOOKUP"].sum_us < 10_000_000


def test_a_fault_in_a_handler_is_an_internal_error_and_no_more(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    dealer = running.connect()
    dealer.send(frames.pack_request(Ping(), 99))
    reply = frames.unpack_reply(dealer.recv())
    assert reply.seq == 99
    assert reply.error is not None
    assert reply.error.code == ErrorCode.INTERNAL
    dealer.send(b"raise")
    unreadable = frames.unpack_reply(dealer.recv())
    assert unreadable.error is not None
    assert (unreadable.seq, unreadable.error.code) == (0, ErrorCode.INTERNAL)
    dealer.send(b"next")
    assert dealer.recv() == b"echo next"
    assert running.complaints.counts()["loop_fault"] == 2
    assert "[PING, message 99]" in caplog.text


def test_a_failed_effect_stops_no_other(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    def add_bad_effect(peer: PeerId, frame: bytes) -> None:
        running.core.effects.append(cast(Effect, ["a key"]))
        running.core.effects.append(DropPoolOffer(ProcessId(1), cast(Any, b"absent")))

    running.core.on_request = add_bad_effect
    dealer = running.connect()
    dealer.send(b"x")
    assert dealer.recv() == b"echo x"
    assert running.complaints.counts() == {"effect_fault": 1}
    assert caplog.messages == ["effect_fault: list: KeyError(<class 'list'>)"]  # and not its keys


def test_reports_before_a_request_count_before_it(running: Running) -> None:
    dealer = running.connect()
    for number in range(300):
        running.reporter.post(ProcessQuiet(ProcessId(number)))
        dealer.send(b"x")
        assert dealer.recv() == b"echo x"
        assert f"quiet {number}" in running.core.log
        assert running.core.log.index(f"quiet {number}") < len(running.core.log) - 1
        assert running.core.log[-1] == "request"


def test_what_follows_from_a_report_is_done_before_the_next_one(running: Running) -> None:
    # A piece started for a copier must not go to that copier's successor, whose CopierReady may
    # wait right behind.
    core, log = running.core, running.core.log

    def decide(process: ProcessId, now_ns: int) -> None:
        log.append(f"quiet {process}")
        core.effects.append(DropPoolOffer(process, cast(Any, b"absent")))

    core.process_quiet = decide  # type: ignore[method-assign]
    running.loop.actions.perform = lambda effect: log.append("done")  # type: ignore[method-assign]

    def hold(peer: PeerId, frame: bytes) -> None:
        for number in range(3):  # all at once, as after a long slice or a stopped server
            running.loop._queue.append(ProcessQuiet(ProcessId(number)))

    core.on_request = hold
    dealer = running.connect()
    dealer.send(b"x")
    assert dealer.recv() == b"echo x"
    assert wait_until(lambda: log.count("done") == 3)
    assert log[-6:] == ["quiet 0", "done", "quiet 1", "done", "quiet 2", "done"]


def test_a_report_that_fails_does_not_hold_back_those_behind_it(running: Running) -> None:
    def hold(peer: PeerId, frame: bytes) -> None:
        running.loop._queue.extend([cast(Report, "nonsense"), ProcessQuiet(ProcessId(7))])
        running.core.on_request = None

    running.core.on_request = hold
    dealer = running.connect()
    dealer.send(b"x")
    dealer.send(b"y")
    assert [dealer.recv(), dealer.recv()] == [b"echo x", b"echo y"]
    log = running.core.log
    assert log.index("quiet 7") < len(log) - 1 - log[::-1].index("request")


def test_without_one_of_its_threads_it_does_not_go_on(short_dir: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = make_socket(context)
    core, complaints = ScriptedCore(), Complaints()
    loop = Loop(router, cast(Core, core), deque(), complaints)
    nothing = cast(Any, None)
    no_porters = Porters((), lambda name: nothing)
    loop.actions = Actions(cast(Core, core), nothing, nothing, {}, nothing, complaints, no_porters)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    loop.threads = {"one": lambda: True, "side": thread.is_alive}
    with pytest.raises(ThreadDiedError, match="side"):
        loop.run()
    router.close()
    context.destroy(linger=0)


def test_an_unknown_report_is_counted_and_survived(running: Running) -> None:
    running.reporter.post(cast(Report, "nonsense"))
    dealer = running.connect()
    dealer.send(b"x")
    assert dealer.recv() == b"echo x"
    assert running.complaints.counts()["loop_fault"] == 1


def test_timers_fire_when_due_without_traffic(running: Running) -> None:
    due_ns = clock.now_ns() + 50 * clock.NS_PER_MS
    running.core.timer_ns = due_ns
    running.reporter.post(Here())  # as a request would: the loop looks at its timers again
    assert wait_until(lambda: "tick" in running.core.log, 5, 0.001)
    late_ms = (clock.now_ns() - due_ns) / clock.NS_PER_MS
    assert 0 <= late_ms < 500


def test_draining_ends_at_its_limit_even_if_something_is_still_owed(running: Running) -> None:
    running.core.is_drained = False
    begun_ns = clock.now_ns()
    running.reporter.post(DrainAsked())
    dealer = running.connect()
    dealer.send(b"still served")
    assert dealer.recv() == b"echo still served"
    running.thread.join(10)
    assert not running.thread.is_alive()
    assert 0.4 < (clock.now_ns() - begun_ns) / clock.NS_PER_S < 5
    assert running.core.log.count("drain") == 1


def test_an_endpoint_in_use_is_said_so() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    other = context.socket(zmq.ROUTER)
    port = other.bind_to_random_port("tcp://127.0.0.1")
    router = make_socket(context)
    loop = Loop(router, cast(Core, ScriptedCore()), deque(), Complaints())
    with pytest.raises(ConfigError) as caught:
        loop.bind(endpoints.parse(f"tcp://127.0.0.1:{port}"), [])
    assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
    router.close()
    other.close()
    context.destroy(linger=0)


@pytest.mark.parametrize("num_frames", [2, 3, 257, 258, 20_000])
def test_a_message_of_many_frames_is_refused_once_and_others_go_on(
    running: Running, num_frames: int
) -> None:
    bad, good = running.connect(), running.connect()
    for dealer in (bad, good):
        dealer.send(b"warm")
        assert dealer.recv() == b"echo warm"
    running.core.log.clear()
    bad.send_multipart([b"x"] * num_frames)
    good.send(b"meanwhile")
    assert good.recv() == b"echo meanwhile"
    error = frames.unpack_reply(bad.recv()).error
    assert error is not None
    assert error.code == ErrorCode.MALFORMED
    assert str(num_frames) in error.message
    bad.send(b"one frame")
    assert bad.recv() == b"echo one frame"
    assert running.core.log.count("request") == 2  # nothing of the bad one was taken for one
    assert running.complaints.counts() == {"frames": 1}


def test_bursts_are_counted(running: Running) -> None:
    dealer = running.connect()

    def be_busy(peer: PeerId, frame: bytes) -> None:
        until_ns = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until_ns:
            pass

    running.core.on_request = be_busy
    dealer.send(b"x")
    dealer.recv()
    running.core.on_request = None
    dealer.send(b"x")
    dealer.recv()
    figures = running.loop.bursts.counts()
    assert figures["loop_bursts_over_300_us"] >= 1
    assert 20_000 <= figures["loop_burst_max_us"] < 200_000


def test_a_reporter_that_came_later_is_no_stranger(running: Running) -> None:
    context, queue = running.loop._router.context, running.loop._queue
    known, unknown = Reporter(context, "known", queue), Reporter(context, "unknown", queue)
    running.loop.admit(known.routing_id)
    known.post(Here())
    unknown.post(Here())
    assert wait_until(lambda: running.complaints.counts().get("chosen_id") == 1)
    known.post(Here())
    dealer = running.connect()
    dealer.send(b"x")
    dealer.recv()
    assert running.complaints.counts()["chosen_id"] == 1
    known.close()
    unknown.close()

"""Calls and submissions against a server that is slow, silent, forgetful or gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapter.channel import MAX_IN_FLIGHT, Channel, Completion
from adapter.link import Link
from protocol.errors import ErrorCode, ReplyError, RequestError, UnreachableError
from protocol.messages import (
    Body,
    Cancel,
    Done,
    Lookup,
    LookupReply,
    Op,
    Ping,
    Request,
    Store,
    StoreReply,
)
from tests.adapter.linking import joined_link, open_link
from tests.adapter.responder import Responder, until

QUICK_S = 0.05


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


@pytest.fixture
def channel(link: Link) -> Iterator[Channel]:
    channel = link.open_channel()
    yield channel
    channel.close()


def lookup(num_keys: int = 1, session: int = 1) -> Lookup:
    return Lookup(session=session, request=1, start=0, keys=bytes(16 * num_keys))


def store(number: int) -> Store:
    return Store(
        session=1,
        store=number,
        request=1,
        shard=0,
        start=0,
        parent=b"",
        keys=bytes(16 * number),
        pages=bytes(4 * number),
    )


def refuse(code: ErrorCode) -> Callable[[Request], Body]:
    def handler(_: Request) -> Body:
        raise RequestError(code, "as the test wants it")

    return handler


def seconds(action: Callable[[], object]) -> float:
    started_s = time.monotonic()
    with pytest.raises(UnreachableError):
        action()
    return time.monotonic() - started_s


def all_of(channel: Channel, count: int) -> list[Completion]:
    ended: list[Completion] = []

    def collect() -> bool:
        ended.extend(channel.poll(0.05))
        return len(ended) >= count

    until(collect)
    return ended


def test_call_returns_the_typed_reply(channel: Channel) -> None:
    assert channel.call(Ping(), 2) == Done()
    reply = channel.call(lookup(3), 2)
    assert isinstance(reply, LookupReply)
    assert reply.ready == 3


def test_not_joined_is_told_at_once(short_dir: Path) -> None:
    with open_link(f"ipc://{short_dir}/nobody") as link:
        channel = link.open_channel()
        assert seconds(lambda: channel.call(Ping(), 5)) < QUICK_S
        assert seconds(lambda: channel.submit(Ping(), 5)) < QUICK_S
        assert channel.poll(5) == []
        channel.close()
        assert link.counters["calls_not_joined"] == 2


def test_a_time_out_costs_its_budget_once_and_opens_the_breaker(
    server: Responder, link: Link, channel: Channel
) -> None:
    channel.call(Ping(), 2)
    server.mute |= {Op.LOOKUP, Op.PING, Op.HELLO}
    assert 0.02 <= seconds(lambda: channel.call(lookup())) < 0.02 + QUICK_S
    assert link.is_breaker_open
    for _ in range(20):
        assert seconds(lambda: channel.call(lookup(), 5)) < QUICK_S
    assert link.counters["call_timeouts"] == 1
    assert link.counters["calls_refused_by_breaker"] == 20
    assert link.joined is not None


def test_the_breaker_closes_by_itself_when_the_server_answers_again(
    server: Responder, link: Link, channel: Channel
) -> None:
    server.mute |= {Op.LOOKUP, Op.PING, Op.HELLO}
    channel_error_s = seconds(lambda: channel.call(lookup()))
    assert channel_error_s < 0.02 + QUICK_S
    server.mute.clear()
    until(lambda: not link.is_breaker_open)
    assert isinstance(channel.call(lookup(), 2), LookupReply)


def test_a_late_reply_is_never_taken_for_another(
    server: Responder, link: Link, channel: Channel
) -> None:
    channel.call(Ping(), 2)
    hellos = server.num_hellos
    server.delay_s[Op.LOOKUP] = 0.1
    assert seconds(lambda: channel.call(lookup(7), 0.02)) < 0.02 + QUICK_S
    server.delay_s.clear()
    until(lambda: not link.is_breaker_open)
    reply = channel.call(lookup(2), 2)
    assert isinstance(reply, LookupReply)
    assert reply.ready == 2
    assert server.num_hellos > hellos


def test_no_time_left_is_told_without_asking(
    server: Responder, link: Link, channel: Channel
) -> None:
    with pytest.raises(UnreachableError, match="no time"):
        channel.call(lookup(), 0)
    assert Op.LOOKUP not in server.ops()
    assert not link.is_breaker_open


def test_a_refusal_is_passed_on_and_harms_nothing(
    server: Responder, link: Link, channel: Channel
) -> None:
    server.handlers[Op.LOOKUP] = refuse(ErrorCode.BUSY)
    with pytest.raises(ReplyError) as caught:
        channel.call(lookup(), 2)
    assert caught.value.code == ErrorCode.BUSY
    assert not link.is_breaker_open
    assert channel.call(Ping(), 2) == Done()


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SESSION, ErrorCode.WRONG_ARENA])
def test_a_server_that_forgot_us_is_joined_again(
    server: Responder, link: Link, channel: Channel, code: ErrorCode
) -> None:
    server.handlers[Op.LOOKUP] = refuse(code)
    with pytest.raises(ReplyError):
        channel.call(lookup(), 2)
    until(lambda: link.joined is None or server.num_sessions > 1)


def test_an_outdated_session_of_the_caller_is_no_reason_to_join_again(
    server: Responder, link: Link, channel: Channel
) -> None:
    server.handlers[Op.LOOKUP] = refuse(ErrorCode.UNKNOWN_SESSION)
    with pytest.raises(ReplyError):
        channel.call(lookup(session=99), 2)
    beats = len(server.bodies(Op.PING))
    until(lambda: len(server.bodies(Op.PING)) > beats + 1)
    assert link.joined is not None
    assert server.num_sessions == 1


def test_a_connection_that_the_server_gave_up_is_replaced_within_the_call(
    server: Responder, link: Link, channel: Channel
) -> None:
    channel.call(Ping(), 2)
    refused: list[Request] = []

    def once(body: Request) -> Body:
        if refused:
            return server._default(body)
        refused.append(body)
        return refuse(ErrorCode.UNAUTHENTICATED)(body)

    server.handlers[Op.LOOKUP] = once
    assert isinstance(channel.call(lookup(), 2), LookupReply)
    assert link.joined is not None


def test_several_submissions_are_in_flight_at_once(server: Responder, channel: Channel) -> None:
    server.delay_s[Op.STORE] = 0.05
    tickets = [channel.submit(store(number), 5) for number in range(1, 9)]
    assert channel.num_in_flight == 8
    assert channel.call(Ping(), 2) == Done()
    ended = all_of(channel, 8)
    assert [completion.ticket for completion in ended] == tickets
    copied = [c.body.copied for c in ended if isinstance(c.body, StoreReply)]
    assert copied == list(range(1, 9))
    assert channel.poll(5) == []


def test_submissions_are_bounded(server: Responder, channel: Channel) -> None:
    server.mute.add(Op.STORE)
    for number in range(1, MAX_IN_FLIGHT + 1):
        channel.submit(store(number), 5)
    with pytest.raises(UnreachableError) as caught:
        channel.submit(store(1), 5)
    assert caught.value.code == ErrorCode.BUSY


def test_what_was_given_up_makes_room_and_is_not_told(server: Responder, channel: Channel) -> None:
    server.mute.add(Op.STORE)
    for number in range(1, MAX_IN_FLIGHT + 1):
        channel.submit(store(number), 5)
    channel.give_up()
    assert channel.num_in_flight == 0
    server.mute.clear()
    ticket = channel.submit(store(1), 5)
    assert [completion.ticket for completion in all_of(channel, 1)] == [ticket]


def test_a_submission_that_is_never_answered_ends(
    server: Responder, link: Link, channel: Channel
) -> None:
    server.mute.add(Op.STORE)
    ticket = channel.submit(store(1), 0.05)
    (ended,) = all_of(channel, 1)
    assert ended.ticket == ticket
    assert isinstance(ended.error, UnreachableError)
    assert link.counters["submit_timeouts"] == 1
    until(lambda: not link.is_breaker_open)


def test_refused_submissions_say_why(server: Responder, channel: Channel) -> None:
    server.handlers[Op.STORE] = refuse(ErrorCode.NO_ROOM)
    channel.submit(store(1), 2)
    channel.submit(Cancel(session=1, store=1), 2)
    first, second = all_of(channel, 2)
    assert isinstance(first.error, ReplyError)
    assert first.error.code == ErrorCode.NO_ROOM
    assert second.body == Done()


def test_what_is_in_flight_ends_when_the_server_goes(
    server: Responder, link: Link, channel: Channel
) -> None:
    server.mute.add(Op.STORE)
    channel.submit(store(1), 60)
    server.drop_sides()
    (ended,) = all_of(channel, 1)
    assert isinstance(ended.error, UnreachableError)


def test_a_long_call_ends_when_the_server_goes(
    server: Responder, link: Link, channel: Channel
) -> None:
    channel.call(Ping(), 2)
    server.mute.add(Op.LOOKUP)
    threading.Timer(0.05, server.drop_sides).start()
    assert seconds(lambda: channel.call(lookup(), 60)) < 5


def test_a_channel_belongs_to_one_thread_and_ends_with_close(link: Link) -> None:
    channel = link.open_channel()
    channel.call(Ping(), 2)
    caught: list[BaseException] = []

    def other() -> None:
        try:
            channel.call(Ping(), 2)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert "one thread" in str(caught[0])
    channel.close()
    channel.close()
    with pytest.raises(RuntimeError, match="closed"):
        channel.call(Ping(), 2)


FORK = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from protocol.errors import UnreachableError
from protocol.messages import Ping
from tests.adapter.linking import joined_link
from tests.adapter.responder import Responder
with Responder(Path({folder!r})) as server, joined_link(server.url) as link:
    channel = link.open_channel()
    channel.call(Ping(), 2)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: channel.call(Ping(), 2), lambda: channel.submit(Ping(), 2)):
            try:
                use()
            except UnreachableError as error:
                refused += "forked" in error.message
        nothing = link.joined is None and link.wait_joined(5) is None and not link.close(5)
        channel.close()
        os._exit(0 if refused == 2 and nothing else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    channel.call(Ping(), 2)
    channel.close()
print("fine")
"""


def test_a_forked_process_is_refused_and_harms_nothing(short_dir: Path, root: Path) -> None:
    script = FORK.format(root=str(root), folder=str(short_dir))
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env=dict(os.environ)
    )
    assert done.stdout == "fine\n", done.stderr

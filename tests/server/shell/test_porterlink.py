"""Jobs to a porter: packed as they are, bounded, and given up when it answers nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from protocol.ids import Fingerprint
from server.core import effects as fx
from server.core.effects import JobId, TierId
from server.porter.wire import MAX_COMMAND_BYTES, Answer, Command, Kind, unpack_command
from server.shell import clock, porterlink
from server.shell.porterlink import Job, PorterLink
from tests.server.porter.rows import SPACE, key, rows

SECOND = clock.NS_PER_S
TIER = TierId(0)
SPACE_ID = Fingerprint(SPACE)


def get(number: int) -> fx.TierGet:
    return fx.TierGet(TIER, JobId(number), SPACE_ID, rows([1, 2]))


def clear(number: int) -> fx.TierDrop:
    return fx.TierDrop(TIER, JobId(number), SPACE_ID, b"", 0)


@pytest.fixture
def pair() -> Iterator[tuple[PorterLink, socket.socket]]:
    link = PorterLink(stall_limit_s=10, forget_limit_s=100)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(5)
    link.take_over(ours, os.getpid(), 0)
    yield link, theirs
    link.detach()
    theirs.close()


@pytest.mark.parametrize(
    ("job", "command"),
    [
        (fx.TierHealth(TIER, JobId(1)), Command(Kind.HEALTH, 1)),
        (
            fx.TierProbe(TIER, JobId(2), SPACE_ID, key(1) + key(2), 3),
            Command(Kind.PROBE, 2, fingerprint=SPACE, keys=key(1) + key(2), shards=3),
        ),
        (
            fx.TierDrop(TIER, JobId(3), SPACE_ID, key(1), 3),
            Command(Kind.DROP, 3, fingerprint=SPACE, keys=key(1), shards=3),
        ),
        (
            fx.TierTouch(TIER, JobId(5), SPACE_ID, key(1) + key(2), 3),
            Command(Kind.TOUCH, 5, fingerprint=SPACE, keys=key(1) + key(2), shards=3),
        ),
        (clear(4), Command(Kind.CLEAR, 4, fingerprint=SPACE)),
    ],
)
def test_jobs_are_packed(
    pair: tuple[PorterLink, socket.socket], job: Job, command: Command
) -> None:
    link, theirs = pair
    assert link.start(job, 0)
    assert unpack_command(theirs.recv(MAX_COMMAND_BYTES)) == command


def test_parts_travel_with_gets_and_puts(pair: tuple[PorterLink, socket.socket]) -> None:
    link, theirs = pair
    put = fx.TierPut(TIER, JobId(6), SPACE_ID, rows([3]))
    for job, kind in ((get(5), Kind.GET), (put, Kind.PUT)):
        assert link.start(job, 0)
        command = unpack_command(theirs.recv(MAX_COMMAND_BYTES))
        assert command.parts is not None
        assert (command.kind, command.parts.tobytes()) == (kind, job.parts.tobytes())


def test_without_a_porter_a_job_is_refused() -> None:
    assert not PorterLink().start(get(1), 0)


def test_ten_thousand_jobs_are_bounded(pair: tuple[PorterLink, socket.socket]) -> None:
    link, _ = pair
    taken = sum(link.start(get(number), 0) for number in range(10_000))
    assert taken == porterlink.MAX_OUTSTANDING
    link.answered(Answer(Kind.GET, 1), 1)
    assert link.start(get(1), 0)


def test_one_that_answers_nothing_is_given_up_unless_it_shows_that_it_gets_on(
    pair: tuple[PorterLink, socket.socket],
) -> None:
    link, _ = pair
    link.start(get(1), 0)
    assert not link.check(9 * SECOND)
    link.answered(Answer(Kind.PROGRESS, 0), 9 * SECOND)
    assert link.num_outstanding == 1
    assert not link.check(18 * SECOND)
    assert link.check(19 * SECOND)


def test_forgetting_a_namespace_may_take_long_but_only_alone(
    pair: tuple[PorterLink, socket.socket],
) -> None:
    link, _ = pair
    link.start(clear(1), 0)
    assert link.deadline_ns() == 100 * SECOND
    link.start(get(2), 50 * SECOND)
    assert link.deadline_ns() == 60 * SECOND
    link.answered(Answer(Kind.GET, 2), 55 * SECOND)
    assert link.deadline_ns() == 155 * SECOND
    link.start(get(3), 60 * SECOND)
    link.answered(Answer(Kind.CLEAR, 1), 61 * SECOND)
    assert link.deadline_ns() == 71 * SECOND


def test_a_lost_porter_forgets_what_it_forgot(pair: tuple[PorterLink, socket.socket]) -> None:
    link, theirs = pair
    link.start(clear(1), 0)
    link.detach()
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.take_over(ours, 1, 0)
    link.start(get(2), 0)
    assert link.deadline_ns() == 10 * SECOND
    other.close()
    assert theirs.fileno() >= 0

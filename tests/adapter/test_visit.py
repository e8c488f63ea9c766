"""One stay: what begins it, what ends it, what it leaves behind."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from adapter.enrolment import PoolFd, Registration
from adapter.household import Former, Household
from adapter.metadata import ConnectorMetadata
from adapter.visit import Visit
from protocol.errors import ErrorCode, KvkeepError, RequestError, UnreachableError
from protocol.ids import Epoch, SessionId
from protocol.messages import Op, RegisterKvCacheReply
from protocol.namespace import fingerprint
from protocol.side import Welcome, pack
from tests.adapter.linking import make_pool, shard_pool
from tests.adapter.responder import (
    PAGE_BYTES,
    ExtentFile,
    Responder,
    geometry,
    namespace,
    until,
    void,
)
from tests.adapter.test_household import household


@pytest.fixture
def house() -> Iterator[Household]:
    with zmq.Context() as context:
        yield household(context)


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def registration() -> Registration:
    pool = make_pool(4)
    return Registration(namespace(), 0, PoolFd(pool.fd), pool.num_bytes, (shard_pool(4),))


def begin(house: Household, server: Responder, former: Former | None = None) -> Visit:
    return Visit(house, 1, server.base + ".side", former)


def turn_until(
    visit: Visit, registration: Registration | None, condition: Callable[[], Any]
) -> None:
    def step() -> Any:
        visit.turn(time.monotonic_ns(), registration, None)
        return condition()

    until(step)


def join(visit: Visit, registration: Registration) -> None:
    turn_until(visit, registration, lambda: visit.duties)


def ended(visit: Visit, registration: Registration | None = None) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        turn_until(visit, registration, lambda: False)
    visit.close()
    return caught.value


def test_a_stay_is_polled_registered_and_left(
    house: Household, server: Responder, registration: Registration
) -> None:
    visit = begin(house, server)
    assert len(visit.polled(0)) == 1
    assert visit.has_left
    turn_until(visit, None, lambda: visit.is_welcome)
    assert visit.registration is None
    join(visit, registration)
    assert len(visit.polled(0)) == 2
    assert house.membership.access is not None
    assert house.membership.access.serial == 1
    assert visit.gave_pool
    visit.leave()
    assert not server.bodies(Op.UNREGISTER)
    turn_until(visit, registration, lambda: visit.has_left)
    visit.close()
    visit.close()


def test_a_registration_is_said_in_one_line(
    house: Household,
    server: Responder,
    registration: Registration,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    visit = begin(house, server)
    join(visit, registration)
    visit.close()
    lines = [r.getMessage() for r in caplog.records if "registered at" in r.getMessage()]
    assert lines == [
        f"kvkeep: registered at {server.url}: 4 pages of {PAGE_BYTES} bytes, "
        f"namespace {fingerprint(namespace()).hex()}"
    ]


def test_a_server_that_calls_the_namespace_otherwise_is_left(
    house: Household, server: Responder, registration: Registration
) -> None:
    """docs/protocol.md: the server computes the fingerprint too, and a client compares."""
    server.handlers[Op.REGISTER_KV_CACHE] = lambda body: RegisterKvCacheReply(
        session=5, fingerprint=bytes(16), extents=0
    )
    visit = begin(house, server)
    turn_until(visit, registration, lambda: house.membership.refusal)
    assert house.membership.refusal is not None
    assert fingerprint(namespace()).hex() in house.membership.refusal.message
    assert house.membership.access is None
    turn_until(visit, registration, lambda: visit.has_left)
    assert [body.session for body in server.bodies(Op.UNREGISTER)] == [5]
    visit.close()


def test_nobody_there(house: Household, short_dir: Path) -> None:
    with pytest.raises(UnreachableError):
        Visit(house, 1, f"{short_dir}/nobody", None)


def test_no_welcome_in_time(house: Household, server: Responder) -> None:
    server.stop()  # the listening socket's backlog took the connection, nobody speaks
    with pytest.raises(UnreachableError):
        begin(house, server)


def test_the_server_ends_it(
    house: Household, server: Responder, registration: Registration
) -> None:
    visit = begin(house, server)
    join(visit, registration)
    server.drop_sides()
    assert "closed" in ended(visit, registration).message


def test_a_second_welcome_ends_it(
    house: Household, server: Responder, registration: Registration
) -> None:
    visit = begin(house, server)
    join(visit, registration)
    again = Welcome(token=bytes(16), epoch=bytes(16), arena=bytes(16), endpoint=server.url)
    server.run(lambda: void(server._sides[-1].send(pack(again))))
    assert ended(visit, registration).code == ErrorCode.MALFORMED


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://8.8.8.8:1", ""])
def test_an_unusable_endpoint_ends_it(house: Household, server: Responder, endpoint: str) -> None:
    server.url = endpoint
    assert ended(begin(house, server)).code == ErrorCode.INVALID_URL


def test_void_tokens_end_it(
    house: Household, server: Responder, registration: Registration
) -> None:
    server.make_token = lambda: b"not remembered !"  # type: ignore[assignment,method-assign,return-value]
    assert ended(begin(house, server), registration).code == ErrorCode.UNAUTHENTICATED


def test_doubt_ends_it(house: Household, server: Responder, registration: Registration) -> None:
    visit = begin(house, server)
    join(visit, registration)
    house.membership.doubt(1)
    assert ended(visit, registration).code == ErrorCode.UNKNOWN_SESSION


def test_a_refusal_is_kept_and_the_stay_goes_on(
    house: Household, server: Responder, registration: Registration
) -> None:
    server.refuse_pool = ErrorCode.POOL_INVALID
    visit = begin(house, server)
    turn_until(visit, registration, lambda: house.membership.refusal)
    assert visit.has_left
    assert house.membership.access is None
    visit.turn(time.monotonic_ns(), registration, None)
    assert visit.next_ns(time.monotonic_ns()) is None
    visit.close()


@pytest.mark.parametrize("has_other", [True, False])
def test_a_refused_registration_may_be_replaced_and_is_asked_once(
    house: Household, server: Responder, registration: Registration, has_other: bool
) -> None:
    said: list[KvkeepError] = []

    def replaced(error: KvkeepError) -> bool:
        said.append(error)
        return has_other

    def refuse(body: object) -> None:
        raise RequestError(ErrorCode.UNSUPPORTED, "no GPU here")

    server.handlers[Op.REGISTER_KV_CACHE] = refuse
    wanted = replace(registration, on_refused=replaced)
    visit = begin(house, server)
    turn_until(visit, wanted, lambda: said)
    for _ in range(3):
        visit.turn(time.monotonic_ns(), wanted, None)
    assert [error.code for error in said] == [ErrorCode.UNSUPPORTED]
    assert "no GPU here" in said[0].message
    assert (house.membership.refusal is None) == has_other
    assert visit.has_left
    assert not visit.may_leave  # so the keeper does not wait for it with the other one
    visit.close()


def test_the_former_session_is_ended_first_when_nothing_is_loaded_under_it(
    house: Household, server: Responder, registration: Registration
) -> None:
    house.formers._offers.lead()
    house.formers._offers.built(1, [server.epoch], [])
    former = Former(server.epoch, SessionId(9), house.formers.watch(server.epoch))
    visit = begin(house, server, former)
    turn_until(visit, registration, lambda: visit.is_welcome)
    for _ in range(20):
        visit.turn(time.monotonic_ns(), registration, None)
        time.sleep(0.005)
    assert not server.bodies(Op.UNREGISTER)
    assert [visit.former] != [None]
    house.formers._offers.begun(ConnectorMetadata(1))
    join(visit, registration)
    assert server.bodies(Op.UNREGISTER)[0].session == 9
    assert visit.former is None
    assert visit.has_ended_former
    visit.close()


def test_a_former_session_is_ended_at_once_by_one_that_leaves(
    house: Household, server: Responder, registration: Registration
) -> None:
    former = Former(server.epoch, SessionId(9), house.formers.watch(server.epoch))
    visit = begin(house, server, former)
    visit.leave()
    assert visit.may_leave
    assert not visit.has_left
    turn_until(visit, registration, lambda: visit.has_left)
    assert [body.session for body in server.bodies(Op.UNREGISTER)] == [9]
    assert not server.bodies(Op.REGISTER_KV_CACHE)
    visit.close()


def test_a_former_session_of_another_server_does_not_matter(
    house: Household, server: Responder, registration: Registration
) -> None:
    gone = Epoch(b"x" * 16)
    visit = begin(house, server, Former(gone, SessionId(9), house.formers.watch(gone)))
    join(visit, registration)
    assert server.bodies(Op.UNREGISTER) == []
    assert not visit.has_ended_former
    visit.close()


def test_a_session_in_the_way_ends_the_stay_and_is_named(
    house: Household, server: Responder, registration: Registration
) -> None:
    def stands(body: Any) -> Any:
        raise RequestError(ErrorCode.DUPLICATE, "registered already", session=7)

    server.handlers[Op.REGISTER_KV_CACHE] = stands
    visit = begin(house, server)
    assert ended(visit, registration).code == ErrorCode.DUPLICATE
    assert visit.left_behind == 7


def num_open(files: list[ExtentFile]) -> int:
    """Descriptors of these files in this process; others are none of the test's business."""
    inodes = {(os.fstat(file.fd).st_dev, os.fstat(file.fd).st_ino) for file in files}
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            about = os.stat(f"/proc/self/fd/{name}")
            count += (about.st_dev, about.st_ino) in inodes
    return count


def test_early_extents_are_closed_with_the_stay_or_when_taken(
    house: Household, server: Responder, registration: Registration
) -> None:
    server.mute.add(Op.REGISTER_KV_CACHE)
    visit = begin(house, server)
    turn_until(visit, registration, lambda: server.bodies(Op.REGISTER_KV_CACHE))
    files = [ExtentFile(geometry(n, namespace()), server.arena) for n in (1, 2)]
    server.num_sessions = 1
    for file in files:
        server.give(file)
    turn_until(visit, registration, lambda: len(visit._early) == 2)
    server.take(1)
    turn_until(visit, registration, lambda: len(visit._early) == 1)
    assert visit._early[0][0].extent == 2
    assert num_open(files) == len(files) + 1
    visit.close()
    assert num_open(files) == len(files)
    for file in files:
        file.close()

"""The steps of a registration, and what follows each refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adapter.enrolment import RETRY_FIRST_NS, Enrolment, PoolFd, Registration, Stage
from protocol.errors import ErrorCode, KvkeepError, ReplyError, UnreachableError
from protocol.layout import CudaIpcMemory, MemfdMemory, RingMemory
from protocol.messages import Body, RegisterKvCache, RegisterKvCacheReply, Request
from protocol.side import PoolOffer, SideError
from tests.adapter.linking import make_pool, shard_pool
from tests.adapter.responder import namespace

REPLY = RegisterKvCacheReply(session=3, fingerprint=bytes(16), extents=1)


class Peer:
    """Stands where the side connection and the calls stand, and keeps what was said."""

    def __init__(self) -> None:
        self.greeted = True
        self.offers: list[tuple[PoolOffer, int | None]] = []
        self.asked: list[Any] = []
        self.done: Callable[[Body | None, KvkeepError | None], None] | None = None

    def send(self, body: Any, second: Any = None, done: Any = None) -> bool:
        if isinstance(body, PoolOffer):
            self.offers.append((body, second))
        else:
            assert isinstance(body, Request)
            self.asked.append(body)
            self.done = done
        return True

    def answer(self, body: Body | None, error: KvkeepError | None = None) -> None:
        assert self.done is not None
        self.done(body, error)


def begin(is_reader: bool = False) -> tuple[Enrolment, Peer]:
    pool = make_pool(4)
    registration = Registration(
        namespace=namespace(),
        rank=0,
        memory=None if is_reader else PoolFd(pool.fd),
        memory_bytes=0 if is_reader else pool.num_bytes,
        pools=() if is_reader else (shard_pool(4),),
    )
    peer = Peer()
    return Enrolment(registration, peer, peer), peer  # type: ignore[arg-type]


def accepted(enrolment: Enrolment, peer: Peer, now_ns: int = 0) -> None:
    enrolment.turn(now_ns)
    enrolment.pool_accepted(peer.offers[-1][0].pool)
    enrolment.turn(now_ns)
    assert stage(enrolment) == Stage.ASKED


def stage(enrolment: Enrolment) -> Stage:
    return enrolment.stage


def refused(code: ErrorCode) -> ReplyError:
    return ReplyError(code, "as the test wants it")


def test_offer_accept_ask_reply() -> None:
    enrolment, peer = begin()
    peer.greeted = False
    enrolment.turn(0)
    assert stage(enrolment) == Stage.IDLE
    assert peer.offers == []
    peer.greeted = True
    enrolment.turn(0)
    assert stage(enrolment) == Stage.OFFERED
    assert enrolment.gave_pool
    enrolment.pool_accepted(b"another pool's id")
    assert stage(enrolment) == Stage.OFFERED
    offer, fd = peer.offers[0]
    assert fd is not None
    assert os.fstat(fd).st_size == offer.size_bytes
    accepted(enrolment, peer)
    asked: RegisterKvCache = peer.asked[0]
    assert asked.memory == MemfdMemory(pool=offer.pool, size_bytes=offer.size_bytes)
    peer.answer(REPLY)
    assert stage(enrolment) == Stage.ENROLLED
    assert enrolment.reply == REPLY


def test_a_ring_is_registered_as_one() -> None:
    enrolment, peer = begin()
    enrolment.registration = replace(enrolment.registration, is_ring=True)
    enrolment.turn(0)
    accepted(enrolment, peer)
    offer, _ = peer.offers[0]
    assert peer.asked[0].memory == RingMemory(pool=offer.pool, size_bytes=offer.size_bytes)


def test_a_reader_offers_nothing() -> None:
    enrolment, peer = begin(is_reader=True)
    enrolment.turn(0)
    assert peer.offers == []
    assert peer.asked[0].memory is None
    assert not enrolment.gave_pool


HANDLE = CudaIpcMemory(
    handle=b"h" * 64, device_uuid=b"u" * 16, base_offset_bytes=512, size_bytes=4 * 8192
)


def test_a_handle_goes_in_the_message_and_no_descriptor_before() -> None:
    enrolment, peer = begin(is_reader=True)
    enrolment.registration = replace(
        enrolment.registration, handle=HANDLE, pools=(shard_pool(4),), memory_bytes=4 * 8192
    )
    enrolment.turn(0)
    assert peer.offers == []
    assert peer.asked[0].memory == HANDLE
    assert enrolment.gave_pool  # it may be read from now on
    peer.answer(None, refused(ErrorCode.NO_ROOM))
    due_ns = enrolment.next_ns()
    assert due_ns is not None
    enrolment.turn(due_ns)
    assert [asked.memory for asked in peer.asked] == [HANDLE, HANDLE]
    peer.answer(None, refused(ErrorCode.POOL_INVALID))
    assert stage(enrolment) == Stage.REFUSED


@pytest.mark.parametrize("code", [ErrorCode.NO_ROOM, ErrorCode.BUSY, ErrorCode.DUPLICATE])
def test_put_off_is_asked_again_with_the_same_pool_and_longer_pauses(code: ErrorCode) -> None:
    enrolment, peer = begin()
    accepted(enrolment, peer)
    now_ns, pauses = 0, []
    for _ in range(8):
        peer.answer(None, refused(code))
        assert stage(enrolment) == Stage.IDLE
        due_ns = enrolment.next_ns()
        assert due_ns is not None
        pauses.append(due_ns - now_ns)
        enrolment.turn(due_ns - 1)
        assert stage(enrolment) == Stage.IDLE
        now_ns = due_ns
        enrolment.turn(now_ns)
        assert stage(enrolment) == Stage.ASKED
    assert pauses[:2] == [RETRY_FIRST_NS, 2 * RETRY_FIRST_NS]
    assert pauses[-1] == 10_000_000_000
    assert len(peer.offers) == 1
    assert len({asked.memory.pool for asked in peer.asked}) == 1


def test_a_pool_that_the_server_did_not_keep_is_offered_again() -> None:
    enrolment, peer = begin()
    accepted(enrolment, peer)
    peer.answer(None, refused(ErrorCode.NO_ROOM))
    enrolment.turn(10**10)
    peer.answer(None, refused(ErrorCode.POOL_INVALID))
    assert stage(enrolment) == Stage.IDLE
    enrolment.turn(2 * 10**10)
    assert stage(enrolment) == Stage.OFFERED
    assert len(peer.offers) == 2
    accepted(enrolment, peer, 2 * 10**10)
    peer.answer(None, refused(ErrorCode.POOL_INVALID))
    assert stage(enrolment) == Stage.REFUSED


@pytest.mark.parametrize(
    "code", [ErrorCode.POOL_INVALID, ErrorCode.PAGE_SIZE_MISMATCH, ErrorCode.UNSUPPORTED]
)
def test_what_cannot_help_is_not_repeated(code: ErrorCode) -> None:
    enrolment, peer = begin()
    accepted(enrolment, peer)
    peer.answer(None, refused(code))
    assert stage(enrolment) == Stage.REFUSED
    assert enrolment.error is not None
    assert enrolment.error.code == code
    enrolment.turn(10**12)
    assert stage(enrolment) == Stage.REFUSED
    assert enrolment.next_ns() is None


@pytest.mark.parametrize("code", [ErrorCode.STALE_EPOCH, ErrorCode.UNAUTHENTICATED])
def test_a_server_that_does_not_know_us_is_joined_anew(code: ErrorCode) -> None:
    enrolment, peer = begin()
    accepted(enrolment, peer)
    peer.answer(None, refused(code))
    assert enrolment.must_rejoin


def test_time_outs_are_tried_again() -> None:
    enrolment, peer = begin()
    enrolment.turn(0)
    enrolment.turn(10_000_000_000)
    assert stage(enrolment) == Stage.IDLE
    enrolment.turn(20_000_000_000)
    enrolment.pool_accepted(peer.offers[-1][0].pool)
    enrolment.turn(20_000_000_000)
    peer.answer(None, UnreachableError(ErrorCode.DEADLINE_EXCEEDED, "late"))
    assert stage(enrolment) == Stage.IDLE


def test_side_errors_about_this_pool_refuse_it() -> None:
    enrolment, peer = begin()
    enrolment.turn(0)
    enrolment.side_error(SideError(code=ErrorCode.POOL_INVALID, message="x", pool=b"o" * 16))
    assert stage(enrolment) == Stage.OFFERED
    pool = peer.offers[0][0].pool
    enrolment.side_error(SideError(code=ErrorCode.POOL_INVALID, message="no seal", pool=pool))
    assert stage(enrolment) == Stage.REFUSED
    assert enrolment.error is not None
    assert enrolment.error.message == "no seal"


def test_own_descriptor_is_closed_with_the_last_reference() -> None:
    pool = make_pool(1)
    own = PoolFd(pool.fd)
    number = own.fileno()
    assert os.fstat(number).st_size == pool.num_bytes
    del own
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)
    with pytest.raises(OSError, match="Bad file"):
        PoolFd(number)


def test_a_session_in_the_way_is_named_once_it_stays() -> None:
    enrolment, peer = begin()
    accepted(enrolment, peer)
    stands = ReplyError(ErrorCode.DUPLICATE, "rank 0 is registered", session=7)
    peer.answer(None, stands)
    assert enrolment.in_the_way is None
    enrolment.turn(enrolment.next_ns() or 0)
    peer.answer(None, refused(ErrorCode.BUSY))
    enrolment.turn(enrolment.next_ns() or 0)
    peer.answer(None, stands)
    assert enrolment.in_the_way is None
    enrolment.turn(enrolment.next_ns() or 0)
    peer.answer(None, stands)
    assert enrolment.in_the_way == 7


def test_a_rank_says_which_it_is_and_what_its_memory_is() -> None:
    for is_ring in (False, True):
        enrolment, peer = begin()
        enrolment.registration = replace(enrolment.registration, rank=3, is_ring=is_ring)
        accepted(enrolment, peer)
        enrolment.turn(0)
        (asked,) = peer.asked
        assert asked.rank == 3
        assert isinstance(asked.memory, RingMemory if is_ring else MemfdMemory)


@pytest.mark.parametrize("node", [None, 3])
def test_the_node_near_the_device_is_said(node: int | None) -> None:
    enrolment, peer = begin()
    enrolment.registration = replace(enrolment.registration, numa_node=node)
    accepted(enrolment, peer)
    enrolment.turn(0)
    assert [body.numa_node for body in peer.asked] == [node]

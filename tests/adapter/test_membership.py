"""The snapshot: entering, leaving, waiting, doubt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from adapter.membership import Access, Joined, Membership
from protocol.errors import ErrorCode, UnreachableError
from protocol.ids import ArenaId, Epoch, Fingerprint, SessionId, Token
from tests.adapter.responder import namespace


def access(serial: int = 1) -> Access:
    joined = Joined(
        epoch=Epoch(b"e" * 16),
        arena=ArenaId(b"a" * 16),
        session=SessionId(1),
        fingerprint=Fingerprint(b"f" * 16),
        max_blocks=16,
        namespace=namespace(),
        rank=0,
        capabilities=frozenset(),
    )
    return Access(serial, "ipc:///x", Token(b"t" * 16), joined)


def test_enter_and_leave() -> None:
    membership = Membership()
    assert membership.wait(0) is None
    membership.enter(access())
    assert membership.access == access()
    assert membership.wait(0) == access()
    membership.leave()
    assert membership.wait(0) is None


def test_wait_wakes_when_joined_refused_or_ended() -> None:
    error = UnreachableError(ErrorCode.POOL_INVALID, "no seal")
    membership = Membership()
    news: list[Callable[[], None]] = [
        lambda: membership.enter(access()),
        lambda: membership.refuse(error),
        membership.end,
    ]
    for act in news:
        membership.leave()
        waiter = threading.Thread(target=membership.wait, args=(10,))
        waiter.start()
        act()
        waiter.join(5)
        assert not waiter.is_alive()
    assert membership.access is None


def test_wait_is_bounded() -> None:
    started_s = time.monotonic()
    assert Membership().wait(0.05) is None
    assert time.monotonic() - started_s < 5


def test_refusal_goes_with_the_next_registration() -> None:
    membership = Membership()
    membership.refuse(UnreachableError(ErrorCode.POOL_INVALID, "no seal"))
    assert membership.refusal is not None
    membership.enter(access())
    assert membership.refusal is None


def test_doubt_concerns_this_stay_and_earlier_ones() -> None:
    membership = Membership()
    membership.doubt(2)
    membership.doubt(1)
    assert membership.is_doubted(1)
    assert membership.is_doubted(2)
    assert not membership.is_doubted(3)

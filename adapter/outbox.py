"""What must reach the server some time: releases and ends of requests, kept until answered.

A RELEASE that got lost would bar eviction for as long as this engine lives, so each is repeated
until the server has answered it or its epoch is over (design rule 3).

Must not know: sockets. Any thread puts; only the keeper's thread takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.ids import Epoch, LeaseId, RequestKey, SessionId
from protocol.messages import EndSession, Release, Request

MAX_NOTICES: Final = 32_768
"""Four times the requests with leases that one instance may have."""


@dataclass(frozen=True)
class ReleaseNotice:
    """A lease, or a part of one, that is given back.

    Attributes:
        epoch: of the server that gave it.
        lease: which.
        start: first chunk.
        count: chunks; 0 for all.
        all_readers: for every rank.
    """

    epoch: Epoch
    lease: LeaseId
    start: int
    count: int
    all_readers: bool

    def body(self, session: SessionId) -> Request:
        """The request that says so.

        Args:
            session: the current one.
        """
        return Release(
            session=session,
            lease=self.lease,
            start=self.start,
            count=self.count,
            all_readers=self.all_readers,
        )


@dataclass(frozen=True)
class EndNotice:
    """A request that ended.

    Attributes:
        epoch: of the server that may hold leases for it.
        request: its key.
    """

    epoch: Epoch
    request: RequestKey

    def body(self, session: SessionId) -> Request:
        """The request that says so.

        Args:
            session: the current one.
        """
        return EndSession(session=session, request=self.request)


Notice = ReleaseNotice | EndNotice


class Outbox:
    """A bounded queue of notices."""

    def __init__(self, on_put: Callable[[], None], max_notices: int = MAX_NOTICES) -> None:
        """Starts empty.

        Args:
            on_put: called after each put, from the thread that put.
            max_notices: how many may wait.
        """
        self._on_put = on_put
        self._max = max_notices
        self._lock = threading.Lock()
        self._notices: deque[Notice] = deque()

    def __len__(self) -> int:
        """Notices that wait."""
        return len(self._notices)

    def put(self, notice: Notice) -> bool:
        """Adds a notice.

        Args:
            notice: what to say.

        Returns:
            False when the queue is full and the notice was dropped.
        """
        with self._lock:
            if len(self._notices) >= self._max:
                return False
            self._notices.append(notice)
        self._on_put()
        return True

    def put_back(self, notice: Notice) -> None:
        """Returns one that could not be delivered, to be the next again.

        Args:
            notice: from ``take``.
        """
        with self._lock:
            self._notices.appendleft(notice)

    def take(self, epoch: Epoch) -> Notice | None:
        """Takes the next notice meant for a server; those meant for others are dropped.

        Args:
            epoch: of the server at hand.

        Returns:
            The notice, or None when none waits.
        """
        with self._lock:
            while self._notices:
                notice = self._notices.popleft()
                if notice.epoch == epoch:
                    return notice
            return None

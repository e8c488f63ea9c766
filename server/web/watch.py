"""Asks the server once a second at most, and keeps what it said.

One thread holds one connection. It asks every five seconds for the history, and sooner for whoever
wants newer figures; those wait for the same answer together, however many they are. Any error
closes the connection: a late answer can so never pass for the next one, and a server that was
started anew is found again. Must not know: HTTP, what the figures mean. Runs in: a thread of the
web process; its readers are the threads that serve.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Body, Quotas, QuotasReply, Request, StatusReply
from protocol.quotas import QuotaRow
from server import asking

_log = logging.getLogger("kvkeep.web")
B = TypeVar("B", bound=Body)

EVERY_S = 5.0
"""Between two points of the history."""

FRESH_S = 1.0
"""What is younger is shown again instead of asking."""

LIMIT_S = 2.0
"""For the server's answer; a loop that takes longer counts as not answering."""

_NEVER_S = float("-inf")
_SETTLE_S = 0.5
"""For a reader, on top of the limit: until the thread has woken up and put the answer down."""


class Asks(Protocol):
    """A connection on which questions are answered; OSError or KvkeepError when they are not."""

    def stats(self, limit_s: float) -> dict[str, int]:
        """The counters."""
        ...

    def status(self, limit_s: float) -> StatusReply:
        """Who is here."""
        ...

    def expect(self, body: Request, kind: type[B], limit_s: float) -> B:
        """Any other question."""
        ...


@dataclass(frozen=True)
class Answer:
    """What came of one question.

    Attributes:
        at_s: when it was over, of the monotonic clock.
        clock_s: the same, of the wall clock, seconds since 1970.
        took_s: how long.
        values: the counters, empty without an answer.
        status: who is here; None without an answer, or from a server that does not know STATUS.
        why: why there is no answer; empty when there is.
        quotas: of tenants that have one, in L1 and in lower tiers.
    """

    at_s: float
    clock_s: float
    took_s: float
    values: dict[str, int]
    status: StatusReply | None
    why: str = ""
    quotas: tuple[QuotaRow, ...] = ()


@dataclass(frozen=True)
class View:
    """What is known now.

    Attributes:
        latest: of the last question; None before the first.
        good: the last that was answered; None if none was.
    """

    latest: Answer | None = None
    good: Answer | None = None

    @property
    def why(self) -> str:
        """Why the server does not answer; empty when it does."""
        return "it was not asked yet" if self.latest is None else self.latest.why


Opens = Callable[[], AbstractContextManager[Asks]]


class Watch:
    """The thread and what it was told.

    Args:
        side_path: of the server's side socket.
        told: called with every point of the history, in the thread: once in five seconds.
        opens: how to connect; the real way unless given.
    """

    def __init__(
        self,
        side_path: str,
        told: Callable[[Answer], None],
        opens: Opens | None = None,
    ) -> None:
        self._side_path = side_path
        self._told = told
        self._opens = opens or self._connected
        self._changed = threading.Condition()
        self._view = View()
        self._is_wanted = False
        self._is_stopping = False
        self._connection: ExitStack | None = None
        self._asks: Asks | None = None
        self._unknown: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="kvkeep-web-watch", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread; whether it has ended in time."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def view(self) -> View:
        """What is known, a second old at most or from a question of now.

        Waits for the answer up to the limit and a moment; what is known then may be older, when the
        thread was just at a question that is not answered.
        """
        end_s = time.monotonic() + LIMIT_S + _SETTLE_S
        begun_s = time.monotonic()
        with self._changed:
            while not self._is_fresh(begun_s):
                self._is_wanted = True
                self._changed.notify_all()
                left_s = end_s - time.monotonic()
                if left_s <= 0 or self._is_stopping:
                    break
                self._changed.wait(left_s)
            return self._view

    def _is_fresh(self, now_s: float) -> bool:
        latest = self._view.latest
        return latest is not None and latest.at_s > now_s - FRESH_S

    def _run(self) -> None:
        due_s = _NEVER_S
        try:
            while self._wait_for_turn(due_s):
                answer = self._one()
                with self._changed:
                    good = self._view.good if answer.why else answer
                    self._view = View(answer, good)
                    self._is_wanted = False
                    self._changed.notify_all()
                if time.monotonic() >= due_s:
                    due_s = max(due_s + EVERY_S, time.monotonic() + EVERY_S - FRESH_S)
                    self._told(answer)
        finally:
            self._close()

    def _wait_for_turn(self, due_s: float) -> bool:
        """Waits until it is time to ask; False when it is time to end."""
        with self._changed:
            while not self._is_stopping:
                now_s = time.monotonic()
                last_s = self._view.latest.at_s if self._view.latest else _NEVER_S
                at_s = last_s + FRESH_S if self._is_wanted else max(due_s, last_s + FRESH_S)
                if now_s >= at_s:
                    return True
                self._changed.wait(at_s - now_s)
            return False

    def _one(self) -> Answer:
        begun_s = time.monotonic()
        values: dict[str, int] = {}
        status: StatusReply | None = None
        quotas: tuple[QuotaRow, ...] = ()
        why = ""
        try:
            asks = self._open()
            end_s = begun_s + LIMIT_S
            # One after the other: the server need not hold two answers for one who reads slowly.
            status = self._if_known("status", lambda: asks.status(_left_s(end_s)))
            told = self._if_known(
                "quotas", lambda: asks.expect(Quotas(), QuotasReply, _left_s(end_s))
            )
            quotas = () if told is None else told.quotas
            values = asks.stats(_left_s(end_s))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next question may be answered
            why = asking.reason(error, self._side_path) or type(error).__name__
            values, status, quotas = {}, None, ()
            self._close()
        now_s = time.monotonic()
        return Answer(now_s, time.time(), now_s - begun_s, values, status, why, quotas)

    def _open(self) -> Asks:
        if self._asks is None:
            self._unknown.clear()
            with ExitStack() as stack:
                self._asks = stack.enter_context(self._opens())
                self._connection = stack.pop_all()
        return self._asks

    def _connected(self) -> AbstractContextManager[Asks]:
        return asking.connected(self._side_path, LIMIT_S, "web")

    def _close(self) -> None:
        self._asks = None
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception as error:  # noqa: BLE001 - it is gone either way
                _log.debug("closing the connection: %r", error)

    def _if_known(self, what: str, ask: Callable[[], B]) -> B | None:
        """The answer; None from a server of before, which is not asked that again."""
        if what in self._unknown:
            return None
        try:
            return ask()
        except ReplyError as error:
            if error.code is not ErrorCode.UNKNOWN_OPERATION:
                raise
            self._unknown.add(what)
            return None


def _left_s(end_s: float) -> float:
    return max(0.001, end_s - time.monotonic())

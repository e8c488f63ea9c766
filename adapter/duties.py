"""What a registered process owes the server: mapping reports, notices, heartbeats, a farewell.

Must not know: the side socket, how the registration came about. Runs in: the keeper's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from adapter.calls import Calls
from adapter.household import Household, LiveRequests
from adapter.mapper import MapReport, Origin
from adapter.outbox import Notice
from protocol import limits
from protocol.errors import REJOIN, ErrorCode, KvkeepError, ReplyError
from protocol.messages import (
    Body,
    Heartbeat,
    HeartbeatReply,
    Mapped,
    Ping,
    Request,
    Unregister,
)
from protocol.side import ExtentGiven, ExtentTaken

REQUEST_S: Final = 2.0

FAREWELL_S: Final = 10.0
"""UNREGISTER is answered when the last copy out of the pool has ended."""

WHOLE_NS: Final = 30_000_000_000
"""Time for the other ranks to register, from the leader's registration on."""

PAUSE_NS: Final = 100_000_000
"""Before what the server put off is asked again."""


class Duties:
    """The duties of one registration.

    Attributes:
        origin: the registration.
        has_left: nothing of the server touches the pool any more.
    """

    def __init__(
        self, household: Household, calls: Calls, serial: int, origin: Origin, heartbeat_s: float
    ) -> None:
        """Takes the duties on; the first heartbeat is due at once (fault B15).

        Args:
            household: of the link.
            calls: to the server.
            serial: number of the stay.
            origin: the registration.
            heartbeat_s: how often the server wants to hear of us.
        """
        self.origin = origin
        self.has_left = False
        self._house = household
        self._calls = calls
        self._serial = serial
        self._beat_every_ns = int(heartbeat_s * 1e9)
        self._beat_at_ns = 0
        self._first_beat_ns: int | None = None
        self._is_lack_said = False
        self._pause_until_ns = 0
        self._to_report: dict[int, bool] = {}
        self._is_reporting = False
        self._is_asking_to_leave = False

    def next_ns(self, is_leaving: bool) -> int | None:
        """When there is something to do even if nothing arrives; None for never.

        Args:
            is_leaving: ``ask_to_leave`` is called instead of ``turn``.
        """
        if is_leaving:
            return self._pause_until_ns or None
        if not self._calls.has_room():
            return None
        is_waiting = bool(self._to_report or len(self._house.outbox))
        if is_waiting and self._pause_until_ns:
            return min(self._beat_at_ns, self._pause_until_ns)
        return self._beat_at_ns

    def turn(self, now_ns: int, live_requests: LiveRequests | None) -> None:
        """Says what is due.

        Args:
            now_ns: monotonic clock.
            live_requests: in the scheduler's process, else None.
        """
        if now_ns >= self._pause_until_ns:
            self._pause_until_ns = 0
            self._report_extents()
            self._send_notices()
        self._beat(now_ns, live_requests)

    # --- extents ---------------------------------------------------------------------------

    def extent_given(self, given: ExtentGiven, fd: int) -> None:
        """The server passed an extent on.

        Args:
            given: what it is.
            fd: its descriptor; closed in due course.
        """
        if given.session != self.origin.session:
            os.close(fd)
            self._house.journal.count("extents_of_other_sessions")
        elif self._house.table.get(given.extent, self.origin.epoch) is not None:
            os.close(fd)
            self._to_report[given.extent] = True
        else:
            self._house.mapper.map(self.origin, given, fd)

    def extent_taken(self, taken: ExtentTaken) -> None:
        """The server wants an extent back.

        Args:
            taken: which.
        """
        if taken.session == self.origin.session:
            self._house.mapper.unmap(self.origin, taken.extent)

    def extents_done(self, reports: Iterable[MapReport]) -> None:
        """The mapper has mapped or unmapped extents; the server is told in the next turn.

        Args:
            reports: those of other registrations are passed over.
        """
        for report in reports:
            if report.origin == self.origin:
                self._to_report[report.extent] = report.is_mapped

    def _report_extents(self) -> None:
        if not self._to_report or self._is_reporting:
            return
        said = dict(list(self._to_report.items())[: limits.MAX_EXTENTS_PER_MESSAGE])

        def done(body: Body | None, error: KvkeepError | None) -> None:
            self._is_reporting = False
            if error is None or self._is_settled(error):
                for extent, is_mapped in said.items():
                    if self._to_report.get(extent) == is_mapped:
                        del self._to_report[extent]

        mapped = [extent for extent, is_mapped in said.items() if is_mapped]
        unmapped = [extent for extent, is_mapped in said.items() if not is_mapped]
        request = Mapped(
            session=self.origin.session,
            mapped=np.array(mapped, "<u4").tobytes(),
            unmapped=np.array(unmapped, "<u4").tobytes(),
        )
        self._is_reporting = self._calls.send(request, REQUEST_S, done)

    # --- notices and heartbeats ------------------------------------------------------------

    def _send_notices(self) -> None:
        outbox = self._house.outbox
        while self._calls.has_room():
            notice = outbox.take(self.origin.epoch)
            if notice is None:
                return
            body = notice.body(self.origin.session)
            if not self._calls.send(body, REQUEST_S, self._notice_done(notice)):
                outbox.put_back(notice)
                self._pause()
                return

    def _notice_done(self, notice: Notice) -> Callable[[Body | None, KvkeepError | None], None]:
        def done(body: Body | None, error: KvkeepError | None) -> None:
            if error is None or self._is_settled(error):
                self._house.journal.count("notices_delivered")
            else:
                self._house.outbox.put_back(notice)

        return done

    def _is_settled(self, error: KvkeepError) -> bool:
        """Draws the consequence of an error. True when the request need not be repeated."""
        if error.code == ErrorCode.UNAUTHENTICATED:
            self._calls.renew("the server gave up this connection", time.monotonic_ns(), False)
            return False
        if error.code in REJOIN:
            self._house.membership.doubt(self._serial)
            return False
        if isinstance(error, ReplyError) and not error.retryable:
            self._house.journal.report("notices_refused", f"the server refused a notice: {error}")
            return True
        self._pause()
        return False

    def _pause(self) -> None:
        self._pause_until_ns = time.monotonic_ns() + PAUSE_NS

    def _beat(self, now_ns: int, live_requests: LiveRequests | None) -> None:
        if now_ns < self._beat_at_ns or not self._calls.has_room():
            return
        self._beat_at_ns = now_ns + self._beat_every_ns
        if self._first_beat_ns is None:
            self._first_beat_ns = now_ns
        age_ns = now_ns - self._first_beat_ns

        def done(reply: Body | None, error: KvkeepError | None) -> None:
            if error is not None:
                self._is_settled(error)
            elif isinstance(reply, HeartbeatReply):
                self._on_beat(reply, age_ns)

        self._calls.send(self._beat_body(live_requests), REQUEST_S, done)
        self._house.journal.count("heartbeats")

    def _on_beat(self, reply: HeartbeatReply, age_ns: int) -> None:
        if reply.epoch != self.origin.epoch:
            self._house.membership.doubt(self._serial)
        elif reply.missing_ranks and age_ns >= WHOLE_NS and not self._is_lack_said:
            self._is_lack_said = True
            self._house.journal.report(
                "ranks_missing",
                f"{reply.missing_ranks} of this engine's ranks are not registered at its server "
                f"after {age_ns // 10**9} s; it runs uncached until they are",
            )

    def _beat_body(self, live_requests: LiveRequests | None) -> Request:
        if live_requests is None:
            return Ping()
        try:
            live = np.fromiter(live_requests(), dtype="<u8")
        except Exception as error:  # noqa: BLE001 - a fault of the caller must not end the keeper
            self._house.journal.report("live_requests_failed", f"live requests unknown: {error!r}")
            return Ping()
        if live.size > limits.MAX_LIVE_REQUESTS:
            # A shortened list would end the leases of those left out.
            self._house.journal.count("heartbeats_too_long")
            return Ping()
        return Heartbeat(session=self.origin.session, requests=live.tobytes())

    # --- farewell --------------------------------------------------------------------------

    def ask_to_leave(self, now_ns: int) -> None:
        """Sends UNREGISTER unless it is under way; ``has_left`` tells when it was answered.

        Args:
            now_ns: monotonic clock.
        """
        if self.has_left or self._is_asking_to_leave or now_ns < self._pause_until_ns:
            return

        def done(body: Body | None, error: KvkeepError | None) -> None:
            self._is_asking_to_leave = False
            if error is None or error.code == ErrorCode.UNKNOWN_SESSION:
                self.has_left = True
            else:
                self._is_settled(error)

        body = Unregister(session=self.origin.session)
        self._is_asking_to_leave = self._calls.send(body, FAREWELL_S, done)

"""Performs the core's effects on tiers and turns their porters' reports into its events.

Must not know: why a job was decided, how a porter is started. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol import logline
from protocol.ids import ExtentId
from server.core import effects as fx
from server.core.dispatch import Core
from server.porter.wire import Answer, Kind
from server.shell import clock, reports
from server.shell.complaints import Complaints
from server.shell.extent_table import ExtentTable
from server.shell.porterlink import Job
from server.shell.porters import Porters

_DONE = frozenset(
    {
        *(Kind.GET, Kind.PUT, Kind.DROP, Kind.CLEAR, Kind.KEEP, Kind.TOUCH),
        *(Kind.NAMESPACES, Kind.NAMESPACE, Kind.HOTTEST, Kind.NEXT),
        *(Kind.QUOTAS, Kind.OF_SALT),
    }
)


class TierActions:
    """Effects and reports of tiers, as ``Actions`` has those of all else.

    Args:
        core: told of outcomes.
        porters: do the jobs.
        extents: mapped by porters.
        complaints: counts what goes wrong.

    Attributes:
        performers: by effect.
        appliers: by report.
    """

    def __init__(
        self, core: Core, porters: Porters, extents: ExtentTable, complaints: Complaints
    ) -> None:
        self._core = core
        self._porters = porters
        self._extents = extents
        self._complaints = complaints
        kinds = (
            *(fx.TierProbe, fx.TierGet, fx.TierPut, fx.TierDrop),
            *(fx.TierHealth, fx.TierKeep, fx.TierList, fx.TierTouch, fx.TierAllot),
        )
        self.performers: dict[type[Any], Callable[[Any], None]] = dict.fromkeys(kinds, self._start)
        self.appliers: dict[type[Any], Callable[[Any, int], None]] = {
            reports.PorterReady: self._ready,
            reports.PorterAnswered: self._answered,
            reports.PorterLost: self._lost,
            reports.PorterStuck: self._stuck,
            reports.PorterGone: lambda report, now_ns: self._core.porter_gone(
                report.tier, report.life, now_ns
            ),
            reports.PorterRefused: self._refused,
            reports.PorterEnded: lambda report, now_ns: None,
            reports.OwedKept: lambda report, now_ns: self._core.owed_kept(
                report.tier, report.fingerprint, report.serial, now_ns
            ),
        }

    def deadline_ns(self) -> int | None:
        """When ``check`` has something to do, or None."""
        due = (link.deadline_ns() for link in self._porters.links.values())
        return min((ns for ns in due if ns is not None), default=None)

    def check(self, now_ns: int) -> None:
        """Kills porters that stopped answering."""
        for tier, link in self._porters.links.items():
            if link.check(now_ns):
                text = f"porter {self._porters.name(tier)} (pid {link.pid}) killed"
                self._complaints.note("porter_wedged", text)

    def close(self) -> None:
        """Forgets all porters, once no thread reports any more."""
        for link in self._porters.links.values():
            link.detach()

    def _start(self, job: Job) -> None:
        now_ns = clock.now_ns()
        if not self._porters.links[job.tier].start(job, now_ns):
            self._fail(job, now_ns)

    def _fail(self, job: Job, now_ns: int) -> None:
        if isinstance(job, fx.TierProbe):
            self._core.tier_probed(job.job, None, now_ns)
        elif isinstance(job, fx.TierHealth):
            self._core.tier_health(job.job, False, 0, 0, now_ns)
        else:
            self._core.tier_done(job.job, None, now_ns)

    # --- reports --------------------------------------------------------------------------------

    def _ready(self, report: reports.PorterReady, now_ns: int) -> None:
        self._porters.links[report.tier].take_over(report.channel, report.pid, now_ns)
        self._core.porter_ready(report.tier, report.used_bytes, report.capacity_bytes, now_ns)

    def _lost(self, report: reports.PorterLost, now_ns: int) -> None:
        text = f"porter {self._porters.name(report.tier)} ended; another is started"
        self._complaints.note("porter_lost", text)
        self._forget(report.tier, now_ns)
        self._core.porter_lost(report.tier, now_ns)

    def _stuck(self, report: reports.PorterStuck, now_ns: int) -> None:
        name = self._porters.name(report.tier)
        text = f"porter {name} (pid {report.pid}) was killed and does not end"
        self._complaints.note("porter_stuck", text)
        # As with copiers: memory of an extent that goes now is free only at its end.
        self._forget(report.tier, now_ns)
        self._core.porter_stuck(report.tier, report.life, now_ns)

    def _forget(self, tier: fx.TierId, now_ns: int) -> None:
        self._porters.note_lost(tier)
        self._extents.lost(self._porters.links[tier], now_ns)

    def _refused(self, report: reports.PorterRefused, now_ns: int) -> None:
        self._porters.note_refused(report.tier)
        text = f"the tier {self._porters.name(report.tier)} cannot be used: {report.reason}"
        self._complaints.note("tier_refused", text)
        self._core.porter_refused(report.tier, now_ns, public(report.reason))

    def _answered(self, report: reports.PorterAnswered, now_ns: int) -> None:
        answer, link = report.answer, self._porters.links[report.tier]
        link.answered(answer, now_ns)
        if answer.error:
            what = "" if answer.kind == Kind.PROGRESS else f"{answer.kind.name}: "
            text = f"{self._porters.name(report.tier)}: {what}{answer.error}"
            self._complaints.note("tier_error", text)
            self._core.porter_said(report.tier, public(f"{what}{answer.error}"), now_ns)
        elif (
            answer.error is None and answer.kind == Kind.PROGRESS
        ):  # one with a text is only for the log
            self._core.tier_moves(report.tier, now_ns)
        if answer.kind == Kind.UNMAP_EXTENT:
            self._extents.unmapped(link, ExtentId(answer.number), now_ns)
        else:
            self._tell(answer, now_ns)

    def _tell(self, answer: Answer, now_ns: int) -> None:
        job, is_well = fx.JobId(answer.number), answer.error is None
        if answer.kind in _DONE:
            self._core.tier_done(job, answer.statuses if is_well else None, now_ns)
        elif answer.kind == Kind.PROBE:
            self._core.tier_probed(job, answer.count if is_well else None, now_ns)
        elif answer.kind == Kind.HEALTH:
            room = answer.used_bytes, answer.capacity_bytes
            warning = public(answer.warning)
            self._core.tier_health(job, is_well, *room, now_ns, answer.statuses, warning)


def public(text: str) -> str:
    """A porter's words as STATUS may show them to whoever may connect, the log's readers or not.

    Args:
        text: of a porter, which leaves out what a library of a store says by itself.

    Returns:
        One line that can be printed, without what an address has before its ``@``.
    """
    line = " ".join(logline.public(text).split())
    return "".join(one if one.isprintable() else "?" for one in line)

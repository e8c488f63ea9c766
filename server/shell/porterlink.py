"""The loop's end of a porter: jobs of a tier, over the link that every child has.

Must not know: how the process is started, what jobs are for. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.ids import ID_BYTES, ExtentId
from server.core import effects as fx
from server.porter.wire import Answer, Command, Kind, pack_command
from server.shell import clock
from server.shell.descriptors import Descriptor
from server.shell.extents import ExtentFile
from server.shell.link import STALL_LIMIT_S, Link

MAX_OUTSTANDING = 8192
"""Commands without an answer; the core's window of bytes holds them to far fewer."""

FORGET_LIMIT_S = 600.0
"""For a tier that forgets a whole namespace while nothing else is asked of it: in a store, each
value of it has to be found and removed."""

Job = fx.TierProbe | fx.TierGet | fx.TierPut | fx.TierDrop | fx.TierHealth | fx.Asked


class PorterLink(Link):
    """Commands to one porter."""

    def __init__(
        self, stall_limit_s: float = STALL_LIMIT_S, forget_limit_s: float = FORGET_LIMIT_S
    ) -> None:
        super().__init__(stall_limit_s)
        self._forget_limit_ns = int(forget_limit_s * clock.NS_PER_S)
        self._num_forgetting = 0

    def detach(self) -> None:
        """Forgets a porter that is gone, and what it owed."""
        super().detach()
        self._num_forgetting = 0

    def start(self, job: Job, now_ns: int) -> bool:
        """Has a job done.

        Args:
            job: of the porter's tier.
            now_ns: the clock.

        Returns:
            Whether an answer (or PorterLost) follows; False when too much is outstanding, or
            nothing runs that could answer.
        """
        if self._channel is None or self.num_outstanding >= MAX_OUTSTANDING:
            return False
        command = _command(job)
        if command.kind in (Kind.DROP, Kind.CLEAR):
            self._num_forgetting += 1
        self.send(pack_command(command), None, now_ns)
        return True

    def answered(self, answer: Answer, now_ns: int) -> None:
        """Notes an answer, or that the porter gets on.

        Args:
            answer: from the porter.
            now_ns: the clock.
        """
        if answer.kind in (Kind.DROP, Kind.CLEAR):
            self._num_forgetting = max(0, self._num_forgetting - 1)
        self.heard(now_ns, is_answer=answer.kind != Kind.PROGRESS)

    def send(
        self, packet: bytes, descriptor: Descriptor | None, now_ns: int, is_whole: bool = True
    ) -> None:
        """Queues and sends."""
        if self.num_outstanding <= self._num_forgetting:
            self._progress_ns = now_ns  # what it is measured by now begins now
        super().send(packet, descriptor, now_ns, is_whole)

    def stall_limit_ns(self) -> int:
        """Longer while it does nothing but forget."""
        if self.num_outstanding <= self._num_forgetting:
            return self._forget_limit_ns
        return super().stall_limit_ns()

    def pack_map(self, file: ExtentFile) -> bytes:
        """The command to map an extent."""
        geometry = file.geometry
        return pack_command(
            Command(
                Kind.MAP_EXTENT,
                geometry.extent,
                size_bytes=geometry.file_bytes,
                offset_bytes=geometry.data_offset_bytes,
            )
        )

    def pack_unmap(self, extent: ExtentId) -> bytes:
        """The command to unmap an extent."""
        return pack_command(Command(Kind.UNMAP_EXTENT, extent))


def _command(job: Job) -> Command:
    if isinstance(job, fx.TierHealth):
        return Command(Kind.HEALTH, job.job)
    if isinstance(job, fx.TierKeep):
        return Command(Kind.KEEP, job.job, fingerprint=job.fingerprint, text=job.text)
    if isinstance(job, fx.TierAllot):
        return Command(Kind.QUOTAS, job.job, text=job.quotas)
    if isinstance(job, fx.TierList):
        kind = Kind[job.what.name]
        space, most = job.fingerprint, job.most
        return Command(kind, job.job, fingerprint=space, shards=most, first=job.shard)
    if isinstance(job, fx.TierGet | fx.TierPut):
        kind = Kind.GET if isinstance(job, fx.TierGet) else Kind.PUT
        return Command(kind, job.job, fingerprint=job.fingerprint, parts=job.parts)
    if isinstance(job, fx.TierTouch):
        kind, first = Kind.TOUCH, 0
    elif isinstance(job, fx.TierProbe):
        kind, first = Kind.PROBE, job.first
    else:
        kind, first = Kind.DROP if job.keys else Kind.CLEAR, 0
    if kind == Kind.CLEAR:
        return Command(kind, job.job, fingerprint=job.fingerprint)
    assert len(job.keys) % ID_BYTES == 0
    return Command(
        kind,
        job.job,
        fingerprint=job.fingerprint,
        keys=job.keys,
        shards=job.shards,
        first=first,
    )

"""The job's mpirun: forks the ranks, and ends all of them as soon as one ends badly.

Single-threaded, for it forks. The kernel ends ranks whose launcher is gone, and the launcher ends
with whoever started the job.

Must not know: what ranks do. Runs in a process of its own, forked from the nursery.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Final

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.ranks.rankserver import Seat, run
from adapter.conformance.host.ranks.spec import Ended, JobSpec, Started
from adapter.conformance.host.ranks.wire import Wire, pair

_PR_SET_PDEATHSIG: Final = 1
_START_LIMIT_S: Final = 60.0
_SAY_LIMIT_S: Final = 5.0
GRACE_MS: Final = 200
"""How long ranks live on after one of them died, in milliseconds."""


def main(fds: Sequence[int]) -> int:
    """Run a job.

    Args:
        fds: Of sockets: this process's own, then one per rank.

    Returns:
        Exit code: 0 if every rank ended well.
    """
    own, *others = fds
    desk = Wire.from_fd(own, "whoever started the job")
    controls = [Wire.from_fd(fd, "whoever started the job") for fd in others]
    spec: JobSpec = desk.receive(_START_LIMIT_S)
    desk.send(Started(os.getpid()), _SAY_LIMIT_S)
    seats = _seats(controls, spec.size)
    job = Job(desk, own)
    for seat in seats:
        job.fork(seat, seats, spec)
    for seat in seats:
        _close(seat)
    return job.watch()


class Job:
    """The processes of a job.

    Args:
        desk: To whoever started the job.
        desk_fd: Its descriptor.
    """

    def __init__(self, desk: Wire, desk_fd: int) -> None:
        self._desk = desk
        self._desk_fd = desk_fd
        self._ranks: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        self._poll.register(desk_fd, select.POLLIN)
        self._is_broken = False

    def fork(self, seat: Seat, seats: Sequence[Seat], spec: JobSpec) -> None:
        """Start a rank; what others use is closed there, so that their end is noticed."""
        launcher, pid = os.getpid(), os.fork()
        if pid == 0:
            code = 1
            try:
                _end_with(launcher)
                self._desk.release()
                for other in seats:
                    if other is not seat:
                        _close(other)
                code = run(seat, spec)
            finally:
                sys.stderr.flush()
                os._exit(code)
        fd = os.pidfd_open(pid)
        self._ranks[fd] = seat.rank, pid
        self._poll.register(fd, select.POLLIN)

    def watch(self) -> int:
        """Wait for the end of all ranks.

        Returns:
            0 if each ended well.
        """
        while self._ranks:
            ready = self._poll.poll(GRACE_MS if self._is_broken else None)
            if self._is_broken and not ready:
                self._signal_all(signal.SIGKILL)
            for fd, _ in ready:
                if fd == self._desk_fd:
                    self._heed_desk()
                else:
                    self._reap(fd)
        return int(self._is_broken)

    def _heed_desk(self) -> None:
        try:
            rank, number = self._desk.receive(_SAY_LIMIT_S)
        except HostError:
            self._poll.unregister(self._desk_fd)
            self._is_broken = True
            self._signal_all(signal.SIGKILL)
            return
        for other, pid in self._ranks.values():
            if other == rank:
                os.kill(pid, number)

    def _reap(self, fd: int) -> None:
        rank, pid = self._ranks.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._is_broken = self._is_broken or code != 0
        try:
            self._desk.send(Ended(rank, code), _SAY_LIMIT_S)
        except HostError:
            pass  # then the descriptor says so too

    def _signal_all(self, number: int) -> None:
        for _, pid in self._ranks.values():
            os.kill(pid, number)


def _seats(controls: Sequence[Wire], size: int) -> list[Seat]:
    comm = [pair("rank 0", f"rank {rank}") for rank in range(1, size)]
    reduce = [pair("rank 0", f"rank {rank}") for rank in range(1, size)]
    leader = Seat(0, controls[0], [mine for mine, _ in comm], [mine for mine, _ in reduce])
    followers = [
        Seat(rank, controls[rank], [comm[rank - 1][1]], [reduce[rank - 1][1]])
        for rank in range(1, size)
    ]
    return [leader, *followers]


def _close(seat: Seat) -> None:
    for wire in (seat.control, *seat.comm, *seat.reduce):
        wire.release()


def _end_with(launcher: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)

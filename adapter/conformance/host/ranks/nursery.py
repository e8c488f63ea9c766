"""One process per interpreter from which all its jobs are forked: torch is imported once.

Importing takes longer than most jobs live. The nursery is told by a packet with a job's
descriptors, forks the job's launcher, and ends with the process that made it.

Must not know: what jobs do. ``plant`` runs in the process that starts jobs, any thread; ``tend``
in the nursery, single-threaded, because it forks.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from adapter.conformance.host.ranks.wire import RankLostError

_MAX_FDS: Final = 64
_END_LIMIT_S: Final = 10.0
# One thread per rank: equal bits need it, and a process with threads must not fork.
_ENVIRON: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Nursery:
    """The process, as seen from the one that made it."""

    def __init__(self) -> None:
        """Start it; it is ready when the first job says so."""
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adapter.conformance.host.ranks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRON, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def is_usable(self) -> bool:
        """Whether it lives, and belongs to this process rather than to the one it was forked of."""
        return self._owner == os.getpid() and self._process.poll() is None

    def plant(self, fds: Sequence[int]) -> None:
        """Fork a job.

        Args:
            fds: What it inherits: a file for its output first.

        Raises:
            RankLostError: If the nursery is gone.
        """
        try:
            socket.send_fds(self._socket, [b"job"], fds)
        except OSError as error:
            raise RankLostError(f"the nursery is gone: {error}") from None

    def close(self) -> None:
        """End it; its jobs end with their own sockets. Idempotent."""
        if self._owner != os.getpid():
            return
        self._socket.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_LIMIT_S)


_LOCK: Final = threading.Lock()
_PRESENT: list[Nursery] = []


def plant(fds: Sequence[int]) -> None:
    """Fork a job off this process's nursery, which is made where there is none.

    Args:
        fds: What the job inherits: a file for its output, the launcher's socket, each rank's.

    Raises:
        RankLostError: If that failed.
    """
    with _LOCK:
        if not (_PRESENT and _PRESENT[-1].is_usable):
            _PRESENT.append(Nursery())
            atexit.register(_PRESENT[-1].close)
        _PRESENT[-1].plant(fds)


def tend(fd: int, launch: Callable[[Sequence[int]], int]) -> int:
    """Be the nursery.

    Args:
        fd: Of the socket to the process that made it.
        launch: Is a job, in a process of its own; gets its sockets and returns an exit code.

    Returns:
        Exit code.
    """
    desk = socket.socket(fileno=fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever started a job sees its end otherwise
    while True:
        said, fds, _, _ = socket.recv_fds(desk, 16, _MAX_FDS)
        if not said:
            return 0
        if os.fork() == 0:
            code = 1
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                desk.close()
                output, *others = fds
                os.dup2(output, 1)
                os.dup2(output, 2)
                code = launch(others)
            finally:
                sys.stderr.flush()
                os._exit(code)
        for inherited in fds:
            os.close(inherited)

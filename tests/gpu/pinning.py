"""Step ``pinning``: seconds per GiB of page-locking, and what kernel launches take meanwhile.

Launches of two: of a neighbour, another process on the device, and of this process's own second
thread, as the engine's executor has them while the adapter's mapper page-locks beside it.

Extents are page-locked as the adapter does it: read-only mappings of shared memory that is
populated, one after the other, with a pause as long as each took (at most 0.25 s).
"""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from tests.gpu.ground import Ground, is_large
from tests.gpu.neighbour import Launches
from tests.slow.figure import Figure
from tests.wire.process import ROOT

QUIET_S = 1.0
MAX_PAUSE_S = 0.25
LIMIT_S = 60.0


class Neighbour:
    """Another process on the same device, launching kernels."""

    def __init__(self, ground: Ground) -> None:
        """Starts it, and waits until it launches."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.neighbour", ground.name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert self._line() == "ready\n"
        except BaseException:
            self.close()
            raise

    def _line(self) -> str:
        stdout = self._child.stdout
        assert stdout is not None
        poller = select.poll()
        poller.register(stdout, select.POLLIN)
        return stdout.readline() if poller.poll(LIMIT_S * 1000) else ""

    def period(self) -> dict[str, float]:
        """Figures of its launches since the last call."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        figures: dict[str, float] = json.loads(self._line())
        return figures

    def close(self) -> None:
        """Ends it."""
        self._child.kill()
        self._child.communicate()


class Executor:
    """A thread of this process that launches kernels.

    Args:
        ground: whose device.
    """

    def __init__(self, ground: Ground) -> None:
        self._stopping = threading.Event()
        self._begun = threading.Event()
        self._launches: Launches | None = None
        self._thread = threading.Thread(target=self._run, args=(ground,), daemon=True)
        self._thread.start()
        self._begun.wait(LIMIT_S)
        assert self._launches is not None, "no kernel was launched"

    def _run(self, ground: Ground) -> None:
        try:
            ground.device.bind()
            self._launches = launches = Launches(ground)
        finally:
            self._begun.set()
        while not self._stopping.is_set():
            launches.once()

    def period(self) -> dict[str, float]:
        """Figures of its launches since the last call."""
        assert self._launches is not None
        return self._launches.take()

    def close(self) -> None:
        """Ends it."""
        self._stopping.set()
        self._thread.join(LIMIT_S)


class Watched:
    """Launches of both, by the time in which they were.

    Args:
        neighbour: in another process.
        executor: in this one.
    """

    def __init__(self, neighbour: Neighbour, executor: Executor) -> None:
        self._all = {"neighbour": neighbour.period, "own process": executor.period}
        self.figures: dict[str, Figure] = {}
        self._take()

    def _take(self) -> dict[str, dict[str, float]]:
        return {who: period() for who, period in self._all.items()}

    def end(self, when: str) -> None:
        """A time ends, and the next begins."""
        for who, values in self._take().items():
            for name, value in values.items():
                self.figures[f"{who}, {when}: {name}"] = Figure(value)


@contextmanager
def extents(num_bytes: int, count: int) -> Iterator[list[tuple[int, int]]]:
    """Files of shared memory, populated and mapped read-only; (address, length) of each."""
    kept: list[Any] = []
    found = []
    for _ in range(count):
        fd = os.memfd_create("kvkeep-extent", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, num_bytes)
            mapping = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        view = np.frombuffer(mapping, dtype=np.uint8)
        view[::4096].max()
        kept.append(view)
        found.append((int(view.ctypes.data), num_bytes))
    yield found


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Page-locks some extents while a neighbour launches kernels."""
    has_room = is_large(ground)
    num_bytes = (1 << 30) if has_room else 8 << 20
    count = 2 if is_quick or not has_room else 4
    took: list[float] = []
    with (
        extents(num_bytes, count) as found,
        closing(Neighbour(ground)) as neighbour,
        closing(Executor(ground)) as executor,
    ):
        watched = Watched(neighbour, executor)
        time.sleep(QUIET_S if has_room else 0.1)  # the time that is measured
        watched.end("quiet")
        pinned = []
        for address, length in found:
            begun_s = time.perf_counter()
            pinned.append(ground.device.pin(address, length))
            took.append(time.perf_counter() - begun_s)
            time.sleep(min(took[-1], MAX_PAUSE_S))  # as the adapter does
        watched.end("while extents are page-locked")
        is_read_only = pinned[0].is_read_only
        begun_s = time.perf_counter()
        for one in pinned:
            one.close()
        release_s = time.perf_counter() - begun_s
        watched.end("while extents are released")
    per_gib = (1 << 30) / num_bytes
    return {
        "read-only page-locking works": Figure(is_read_only),
        "seconds per GiB": Figure(round(sum(took) / count * per_gib, 3)),
        "seconds per GiB, slowest extent": Figure(round(max(took) * per_gib, 3)),
        "seconds per GiB to release": Figure(round(release_s / count * per_gib, 3)),
        **watched.figures,
    }

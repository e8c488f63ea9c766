"""Step ``pinning``: seconds per GiB of page-locking, and a neighbour's launches meanwhile.

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
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from tests.gpu.ground import Ground, is_large
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
    with extents(num_bytes, count) as found, closing(Neighbour(ground)) as neighbour:
        neighbour.period()
        time.sleep(QUIET_S if has_room else 0.1)  # the time that is measured
        quiet = neighbour.period()
        pinned = []
        for address, length in found:
            begun_s = time.perf_counter()
            pinned.append(ground.device.pin(address, length))
            took.append(time.perf_counter() - begun_s)
            time.sleep(min(took[-1], MAX_PAUSE_S))  # as the adapter does
        busy = neighbour.period()
        is_read_only = pinned[0].is_read_only
        begun_s = time.perf_counter()
        for one in pinned:
            one.close()
        release_s = time.perf_counter() - begun_s
    per_gib = (1 << 30) / num_bytes
    figures = {
        "read-only page-locking works": Figure(is_read_only),
        "seconds per GiB": Figure(round(sum(took) / count * per_gib, 3)),
        "seconds per GiB, slowest extent": Figure(round(max(took) * per_gib, 3)),
        "seconds per GiB to release": Figure(round(release_s / count * per_gib, 3)),
    }
    for when, values in (("quiet", quiet), ("while extents are page-locked", busy)):
        for name, value in values.items():
            figures[f"neighbour, {when}: {name}"] = Figure(value)
    return figures

"""A simulated device's copier as a process, with pools of the test's own and extents to fill."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from protocol.device.simulated import driver, settings
from protocol.device.simulated.driver import Allocation
from server.copier.wire import Answer, Command, Kind, copy_commands
from tests.server.copier.child import Child
from tests.wire.process import ROOT

UUID = settings.uuid_of(0)
EXTENT = 4
FIRST_BYTE = 4096
MODULE = ("-m", "server.copier.gpu")


class Pool:
    """Device memory of this process, filled at random, as an engine exports it.

    Attributes:
        array: uint8[num_bytes], the very bytes.
        handle: of its allocation.
    """

    def __init__(self, num_bytes: int, seed: int = 1) -> None:
        current = driver.current()
        assert current is not None
        made = current.allocation_at(current.device(0).malloc(num_bytes))
        assert made is not None
        self.allocation: Allocation = made
        self.array: NDArray[np.uint8] = self.allocation.array
        self.handle = current.device(0).export(self.allocation.address).handle
        self.refill(seed)

    def refill(self, seed: int) -> None:
        """Other content, as the host makes it once pages are its own again."""
        rng = np.random.default_rng(seed)
        self.array[:] = rng.integers(0, 256, self.array.size, dtype=np.uint8)

    def opening(self, number: int, offset: int = 0, size: int | None = None) -> Command:
        """What opens it, or a part of it."""
        size = self.array.size if size is None else size
        return Command(
            Kind.OPEN_POOL, number, size_bytes=size, offset_bytes=offset, handle=self.handle
        )


class GpuChild(Child):
    """A device's copier with one extent.

    Args:
        extent_bytes: of its extent.
        command: of Python.
        environ: more of its environment.

    Attributes:
        extent: uint8[extent_bytes], the very bytes.
    """

    def __init__(
        self,
        extent_bytes: int,
        command: Sequence[str] = MODULE,
        environ: dict[str, str] | None = None,
    ) -> None:
        super().__init__(command, [UUID.hex()], environ)
        assert self.ready == Answer(Kind.READY, self.process.pid, None)
        fd = os.memfd_create("kvkeep-test")
        os.ftruncate(fd, extent_bytes)
        self.extent: NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, extent_bytes), dtype=np.uint8)
        mapping = Command(Kind.MAP_EXTENT, EXTENT, size_bytes=extent_bytes, offset_bytes=FIRST_BYTE)
        assert self.call(mapping, fd) == Answer(Kind.MAP_EXTENT, EXTENT, None)
        os.close(fd)

    def open(self, opening: Command) -> str | None:
        """Opens a pool; why that failed, or None."""
        answer = self.call(opening)
        assert (answer.kind, answer.number) == (Kind.OPEN_POOL, opening.number)
        return answer.error

    def copy(self, job: int, pool: int, parts: NDArray[np.int64]) -> None:
        """Begins a job: int64[3, n], sources, targets, lengths."""
        self.send_all(copy_commands(job, pool, EXTENT, *parts))


def pages(
    page_bytes: int, sources: Sequence[int], targets: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Parts that carry pages to slots of the same size."""
    slots = sources if targets is None else targets
    return np.array(
        [
            [page * page_bytes for page in sources],
            [FIRST_BYTE + slot * page_bytes for slot in slots],
            [page_bytes] * len(sources),
        ],
        dtype=np.int64,
    )


def expected(extent: NDArray[np.uint8], pool: NDArray[np.uint8], parts: NDArray[np.int64]) -> None:
    """Does to a copy of the extent what a job does."""
    for source, target, size in parts.transpose().tolist():
        extent[target : target + size] = pool[source : source + size]


def delays(longest_us: int, seed: int = 1) -> dict[str, str]:
    """The environment of a copier whose device takes its time."""
    return {settings.DELAY_US: str(longest_us), settings.SEED: str(seed)}


FILL = 0x5A
_EXPORTER = (
    "import sys\n"
    "from protocol.device.simulated import driver\n"
    "here, num_bytes = driver.current(), int(sys.argv[1])\n"
    "address = here.device(0).malloc(num_bytes)\n"
    f"here.allocation_at(address).array[:] = {FILL}\n"
    "print(here.device(0).export(address).handle.hex(), flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def exporter(num_bytes: int) -> Iterator[tuple[subprocess.Popen[bytes], Command]]:
    """Another process with an allocation full of FILL, and what opens it as pool 1."""
    engine = subprocess.Popen(
        [sys.executable, "-c", _EXPORTER, str(num_bytes)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert engine.stdin is not None
    assert engine.stdout is not None
    try:
        handle = bytes.fromhex(engine.stdout.readline().decode())
        yield engine, Command(Kind.OPEN_POOL, 1, size_bytes=num_bytes, handle=handle)
    finally:
        engine.kill()
        engine.wait(10)
        engine.stdin.close()
        engine.stdout.close()

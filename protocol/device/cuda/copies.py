"""Which way a batch of copies takes: the copy engine by one call or several, or a kernel.

The copy engine uses no part of the GPU that computes, so it is the rule. A kernel copies what comes
in so many and so small pieces that the engine's fixed time for each would be most of the time.

The numbers below come from reasoning and wait for a GPU: ``tests/gpu`` measures both ways at
several sizes of a piece and prints where they cross (ADR 0013).

Must not know: pages, slots, threads. Any thread that has bound the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.device.batches import coalesce
from protocol.device.cuda import codes
from protocol.device.cuda.driver import Driver
from protocol.device.cuda.locked import Locked
from protocol.device.cuda.order import CudaStream, Order
from protocol.device.interface import Batch, DeviceError, Direction

MAX_PIECE_BYTES = 1 << 20
"""Of a piece for the kernel: one warp copies it while the others wait. The kernel itself takes
up to 1 GiB."""


@dataclass(frozen=True)
class Thresholds:
    """Where one way becomes better than another.

    Attributes:
        few: up to so many copies, one call each costs no more than preparing a batch.
        kernel_pieces: so many pieces make a kernel worth its launch.
        kernel_bytes: mean size of a piece up to which the kernel is the faster way. At 50 GB/s
            16 KiB take 0.3 us, which is about what the copy engine needs to begin a copy.
    """

    few: int = 4
    kernel_pieces: int = 64
    kernel_bytes: int = 16 << 10


class Way(Enum):
    """Of a batch."""

    EACH = "one call each"
    BATCH = "one call for all"
    KERNEL = "kernel"


class Kernel(Protocol):
    """What copies small pieces; see ``kernel``."""

    def is_ready(self) -> bool:
        """Whether it can be launched."""

    def prepare(self) -> None:
        """Has it made in the background."""

    def launch(self, batch: Batch, stream: CudaStream) -> None:
        """Queues the copies."""


def has_small_pieces(batch: Batch, thresholds: Thresholds) -> bool:
    """Whether the kernel is the faster way for a batch."""
    num_pieces = len(batch.sizes)
    return (
        num_pieces >= thresholds.kernel_pieces
        and batch.num_bytes <= num_pieces * thresholds.kernel_bytes
        and int(batch.sizes.max()) <= MAX_PIECE_BYTES
    )


def check(batch: Batch) -> None:
    """Refuses what has no defined result.

    Raises:
        DeviceError: columns of different lengths, a size below one, targets that overlap each
            other or a source.
    """
    if not len(batch.targets) == len(batch.sources) == len(batch.sizes):
        raise DeviceError("cudaErrorInvalidValue", "copies of columns of different lengths")
    if not len(batch.sizes):
        return
    if int(batch.sizes.min()) < 1:
        raise DeviceError("cudaErrorInvalidValue", "a copy of no bytes")
    order = np.argsort(batch.targets)
    begins, ends = batch.targets[order], (batch.targets + batch.sizes)[order]
    if (ends[:-1] > begins[1:]).any():
        raise DeviceError("cudaErrorInvalidValue", "copies to one place twice")
    if _meet(begins, ends, batch.sources, batch.sources + batch.sizes):
        raise DeviceError("cudaErrorInvalidValue", "a copy from where another goes")


def _meet(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    firsts: NDArray[np.int64],
    lasts: NDArray[np.int64],
) -> bool:
    """Whether ranges that are sorted and apart meet any of other ranges."""
    # The first sorted range that ends behind a begin must not begin before that one's end.
    found = np.searchsorted(ends, firsts, side="right")
    inside = found < len(begins)
    return bool((begins[found[inside]] < lasts[inside]).any())


class Copies:
    """Queues batches on streams of one device.

    Args:
        driver: of this process.
        order: its streams and events.
        kernel: for small pieces.
        locked: what host memory is page-locked; a copy must stay within one lock.
        has_host_addresses: the device uses the host's own addresses of page-locked memory. Where
            it does not, neither the call for a batch nor a kernel may be given one: only the call
            for a single copy looks up what memory an address is.
        thresholds: where one way becomes better than another; measurements set others.
    """

    def __init__(
        self,
        driver: Driver,
        order: Order,
        kernel: Kernel,
        locked: Locked,
        has_host_addresses: bool = True,
        thresholds: Thresholds = Thresholds(),
    ) -> None:
        self._driver = driver
        self._order = order
        self._kernel = kernel
        self._locked = locked
        self.thresholds = thresholds
        self._has_host_addresses = has_host_addresses
        self._has_batches = has_host_addresses
        self._beside: dict[Direction, CudaStream] = {}

    def queue(self, stream: CudaStream, batch: Batch, direction: Direction) -> Way | None:
        """Queues copies behind what is on a stream.

        Args:
            stream: any.
            batch: any.
            direction: of it; batches of one direction hold up none of the other.

        Returns:
            which way they took; None when there were none.

        Raises:
            DeviceError: what could not be queued; copies before it may have been.
        """
        check(batch)
        batch = coalesce(batch, self._locked.begins)
        if not len(batch.sizes):
            return None
        if len(batch.sizes) <= self.thresholds.few:
            return self._each(stream, batch)
        if (
            self._has_host_addresses
            and has_small_pieces(batch, self.thresholds)
            and self._kernel.is_ready()
        ):
            self._kernel.launch(batch, stream)
            return Way.KERNEL
        if self._has_batches:
            try:
                return self._batch(stream, batch, direction)
            except DeviceError as error:
                # The driver or the bindings are older than the call: nothing of it was queued.
                if error.code not in _NO_SUCH_CALL:
                    raise
                self._has_batches = False
        return self._each(stream, batch)

    def _each(self, stream: CudaStream, batch: Batch) -> Way:
        columns = (batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist())
        for target, source, size in zip(*columns, strict=True):
            self._driver.copy(target, source, size, stream.handle)
        return Way.EACH

    def _batch(self, stream: CudaStream, batch: Batch, direction: Direction) -> Way:
        columns = (batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist())
        if not stream.is_legacy:
            self._driver.copy_all(*columns, stream.handle)
            return Way.BATCH
        # The call refuses the legacy stream, which the engine's is as a rule (host contract, 5).
        # A stream of ours takes the batch: behind what is on the engine's now, and what the engine
        # queues from now on comes behind the batch.
        beside = self._beside.get(direction) or self._beside.setdefault(
            direction, self._order.create_stream()
        )
        self._order.wait(beside, self._order.record(stream))
        try:
            self._driver.copy_all(*columns, beside.handle)
        finally:  # also behind what was queued of a batch that failed
            self._order.follow(stream, beside)
        return Way.BATCH


_NO_SUCH_CALL = (codes.NAMES[codes.NEEDS_NEWER_DRIVER], "cudaErrorNotSupported")

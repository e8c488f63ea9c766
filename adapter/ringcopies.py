"""Copies pages of a device into ring slots: queued on a stream of our own, then waited for here.

Whoever calls has seen the engine's mark done, so the pages are computed and the copies need no
order of their own. The wait is a poll on the saver's thread, between naps: nothing synchronises
with the device, and no hook takes part. What was queued and cannot be seen to end, because the
device failed or hangs, may still write into the ring; then the ring is kept for good and nothing
goes through it any more.

Must not know: requests, sockets. Runs in: the saver's thread.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adapter.pagememory import Cut, GroupPages
from adapter.ring import Lot, StagingRing
from protocol.device.batches import coalesce
from protocol.device.interface import Batch, Device, DeviceError, Direction, Stream

COPY_LIMIT_S: Final = 30.0
"""Longest wait for copies of a ring's size at most: far above any, on a device that is shared."""

_FIRST_NAP_S: Final = 0.0002
_LONGEST_NAP_S: Final = 0.002
"""Each look takes the engine's thread the GIL for some 50 µs."""


class RingCopies:
    """Copies of one saver, one after the other."""

    def __init__(self, device: Device, ring: StagingRing, limit_s: float = COPY_LIMIT_S) -> None:
        """Makes no use of the device yet.

        Args:
            device: of the pages.
            ring: where they go, page-locked.
            limit_s: longest wait for copies.
        """
        self._device = device
        self._ring = ring
        self._limit_s = limit_s
        self._stream: Stream | None = None
        self._failure: DeviceError | None = None

    def run(
        self, group: GroupPages, cuts: Sequence[Cut], lot: Lot, pages: NDArray[np.int32]
    ) -> None:
        """Copies the same runs of bytes of some pages; they are in their slots on return.

        Args:
            group: the pages.
            cuts: runs of bytes within a page.
            lot: slots of the ring.
            pages: int32[n], one page for each slot, in range.

        Raises:
            DeviceError: they are not, and where they might still come, none ever will be.
        """
        if self._failure is not None:
            raise self._failure
        if not cuts or not pages.size:
            return
        if self._stream is None:
            self._stream = self._device.create_stream()
            weakref.finalize(self, _close, self._stream).atexit = False
        batch = coalesce(batch_of_pages(group, cuts, self._ring.addresses(lot), pages))
        refusal: DeviceError | None = None
        try:
            self._device.copy(self._stream, batch, Direction.TO_HOST)
        except DeviceError as error:
            refusal = error  # some of it may be queued all the same
        try:
            self._wait(self._stream)
        except Exception as error:
            self._ring.keep_for_good()
            if isinstance(error, DeviceError):
                self._failure = error
            else:
                self._failure = DeviceError(repr(error), "copies into the staging ring")
            raise self._failure from error
        if refusal is not None:
            raise refusal

    def _wait(self, stream: Stream) -> None:
        event = self._device.record(stream)
        end_s, nap_s = time.monotonic() + self._limit_s, _FIRST_NAP_S
        while not event.query():
            if time.monotonic() > end_s:
                raise DeviceError(
                    f"not done after {self._limit_s:g} s", "copies into the staging ring"
                )
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)


def _close(stream: Stream) -> None:
    with contextlib.suppress(DeviceError):  # a device that failed took its streams along
        stream.close()


def batch_of_pages(
    group: GroupPages, cuts: Sequence[Cut], targets: NDArray[np.int64], pages: NDArray[np.int32]
) -> Batch:
    """The same runs of bytes of each page, each to its place in the page's target.

    Args:
        group: the pages.
        cuts: runs of bytes within a page; at least one.
        targets: int64[n], where the copy of each page begins.
        pages: int32[n].

    Returns:
        n copies for each cut.
    """
    numbers = pages.astype(np.int64)
    begins = [group.parts[cut.part].address + cut.part_byte for cut in cuts]
    return Batch(
        targets=np.concatenate([targets + cut.page_byte for cut in cuts]),
        sources=np.concatenate(
            [begin + numbers * cut.stride for begin, cut in zip(begins, cuts, strict=True)]
        ),
        sizes=np.repeat(np.array([cut.num_bytes for cut in cuts], dtype=np.int64), pages.size),
    )

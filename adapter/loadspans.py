"""Spans of loads: from their order to the moment when the forward, or the host, may rely on them.

A load that a forward needs whole ends with the hook that made it; one that goes on beside the
forward, layer by layer or on a device, when that forward was launched; one in the background when
its request is said to have arrived. Must not know: pages, streams, how a load is done. Runs in: the
executor's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from adapter.metadata import LoadOrder
from adapter.tracing import OpenSpan, Tracer

_MAX_SEEN: Final = 256

MAX_OPEN: Final = 256
"""Loads whose end was not seen; the host may give a request up that waits outside the batch."""


class LoadSpans:
    """Spans of one rank's loads."""

    def __init__(self, tracer: Tracer, is_beside: bool) -> None:
        """Starts without any.

        Args:
            tracer: of the engine.
            is_beside: loads go on beside the forward that needs them.
        """
        self._tracer = tracer
        self._is_beside = is_beside
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._open: list[tuple[LoadOrder, OpenSpan]] = []

    def begin(self, orders: Sequence[LoadOrder]) -> None:
        """Loads are about to begin; those that were begun before are passed over.

        Args:
            orders: of the iteration.
        """
        for order in orders:
            if order.lease in self._seen:
                continue
            self._seen[order.lease] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            span = self._tracer.open(order.key, "kvkeep.load")
            span.learn(chunks=_num_chunks(order), in_background=order.is_async)
            self._open.append((order, span))
        while len(self._open) > MAX_OPEN:
            self._open.pop(0)[1].end("its end was not seen")

    def begun(self) -> None:
        """The hook that makes loads has ended well."""
        if not self._is_beside:
            self._end(lambda order: not order.is_async)

    def launched(self) -> None:
        """The forward was launched."""
        if self._open:
            self._end(lambda order: not order.is_async)

    def arrived(self, request_ids: Iterable[int]) -> None:
        """Requests that waited outside the batch have their pages.

        Args:
            request_ids: the host's ids.
        """
        if self._open:
            arrived = set(request_ids)
            self._end(lambda order: order.is_async and order.request_id in arrived)

    def failed(self, error: Exception) -> None:
        """A load failed, and with it all that had not ended."""
        for _, span in self._open:
            span.end(f"{type(error).__name__}: {error}")
        self._open.clear()

    def _end(self, is_over: Callable[[LoadOrder], bool]) -> None:
        left = []
        for order, span in self._open:
            if is_over(order):
                self._tracer.add(order.key, "chunks_loaded", _num_chunks(order))
                span.end()
            else:
                left.append((order, span))
        self._open = left


def _num_chunks(order: LoadOrder) -> int:
    return int(order.pages.shape[1])

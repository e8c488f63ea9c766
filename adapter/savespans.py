"""Spans of saves: from a STORE to the COMMIT or CANCEL that settles it.

Must not know: pages, rings, when a save is sent. Runs in: the saver's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from adapter.channel import Completion
from adapter.saveflow import StoreOrder
from adapter.tickets import Purpose, Ticket
from adapter.tracing import NO_SPAN, OpenSpan, Tracer
from protocol.messages import CommitReply, StoreReply

MAX_OPEN: Final = 256


class SaveSpans:
    """Spans of one rank's saves."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """Starts without any.

        Args:
            tracer: of the engine; None where nothing is traced.
        """
        self._tracer = tracer
        self._open: OrderedDict[int, OpenSpan] = OrderedDict()

    def begin(self, store: int, order: StoreOrder, is_known: bool) -> str:
        """A STORE is about to be sent.

        Args:
            store: its number.
            order: what it is to save.
            is_known: whether the server can ``traces``.

        Returns:
            The traceparent for it; empty for none.
        """
        if self._tracer is None:
            return ""
        span = self._tracer.open(order.key, "kvkeep.save")
        if span is NO_SPAN:
            return ""
        span.learn(chunks=order.num_chunks)
        self._open[store] = span
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)[1].end("it was not settled")
        return span.told(is_known)

    def answered(self, ticket: Ticket, completion: Completion) -> None:
        """A request about a STORE was answered.

        Args:
            ticket: what it was.
            completion: how it was answered.
        """
        span = self._open.get(ticket.store) if self._open else None
        if span is None:
            return
        body, error = completion.body, completion.error
        if isinstance(body, StoreReply):
            span.learn(held=body.held, copied=body.copied)
            if body.stop:
                span.learn(stop=body.stop.name.lower())
            if body.copied:
                return  # its COMMIT follows
        elif isinstance(body, CommitReply):
            span.learn(published=body.published)
            if self._tracer is not None:
                self._tracer.add(ticket.key, "chunks_saved", body.published)
        elif ticket.purpose is not Purpose.STORE:
            span.learn(published=0)
        del self._open[ticket.store]
        span.end(f"{error.code.name}: {error.message}" if error is not None else "")

    def lost(self) -> None:
        """Nothing in flight will be answered any more."""
        for span in self._open.values():
            span.end("the server was lost")
        self._open.clear()

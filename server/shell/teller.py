"""Says in the log, and to who traces, what a reply was about.

Purpose: a refused request is named in the log, so that an engine's operator and the server's can
talk about the same one. Refusals are told to who asked and counted by code, so they are lines at
INFO; only a fault of the server's own, or a copy that failed, is a complaint. Must not know: why a
reply is what it is. Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Protocol

from protocol.errors import ErrorCode
from protocol.logline import About
from protocol.messages import Op, StoreReply
from server.core.told import SendReply, Told
from server.shell.complaints import Complaints

_NAMES = {int(op): op.name for op in Op}


class Tracer(Protocol):
    """Whoever makes spans of what is told."""

    def note(self, told: Told, begun_ns: int, now_ns: int) -> None:
        """Takes one answered message; never waits."""
        ...


class Teller:
    """What is said of replies.

    Args:
        complaints: bounds and writes lines.

    Attributes:
        tracer: takes what is to be traced; None where nothing is.
    """

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self.tracer: Tracer | None = None

    def tell(self, reply: SendReply, told: Told, now_ns: int) -> None:
        """Says what there is to say of one reply; never raises, for the reply is still to go.

        Args:
            reply: about to be sent.
            told: what it was about.
            now_ns: the clock.
        """
        try:
            self._tell(reply, told, now_ns)
        except Exception as error:  # noqa: BLE001 - neither a log nor a trace ends the loop
            self._complaints.note("loop_fault", repr(error), error)

    def _tell(self, reply: SendReply, told: Told, now_ns: int) -> None:
        if told.traceparent and self.tracer is not None:
            self.tracer.note(told, reply.begun_ns, now_ns)
        if told.error is not None:
            self._tell_error(told, told.error.code, told.error.message)
        elif isinstance(told.answer, StoreReply) and told.answer.stop.name == "COPY_FAILED":
            text = f"{told.answer.copied} of {told.chunks} chunks were copied"
            self._complaints.note("store_cut", text, about=about(told))

    def _tell_error(self, told: Told, code: ErrorCode, message: str) -> None:
        text = f"{code.name}: {message}"
        if code == ErrorCode.INTERNAL:
            self._complaints.note("request_failed", text, about=about(told))
        else:
            self._complaints.tell("request_refused", code.name, text, about(told))


def about(told: Told) -> About:
    """Whom and what a reply was about, for a log line."""
    return About(
        op=_NAMES.get(told.op, ""),
        seq=told.seq,
        request=told.request,
        engine=told.engine.hex(),
        namespace=told.fingerprint.hex(),
    )

"""What the loop says of traced messages, and the process that makes spans of it.

Purpose: the loop writes one small datagram for a traced message and goes on; where there is no
room, or too many come, the message is counted and not traced. The process behind the socket may be
slow, dead or between two lives: nobody notices but the counters. Must not know: spans, collectors.
Runs in: ``note`` and ``figures`` in the loop thread; the rest as in ``sidechild``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from protocol.messages import LookupReply, Op, StoreReply
from protocol.traceparent import bound_of, is_taken, parse
from server.core.told import Told
from server.shell.complaints import Complaints
from server.shell.sidechild import FIRST_BACKOFF_S, SideChild
from server.tracing.wire import READY, Record, pack

MODULE = "server.tracing"

MAX_PER_S = 200
"""Messages traced in a second, whatever engines ask; as many may come at once."""

_SOCKET_BYTES = 1 << 20
_SECRET = ("AWS_", "KVKEEP_VALKEY_")
_NAMES = {int(op): op.name for op in Op}
_SENT = ("spans_sent", "spans_dropped", "spans_failed")


class TraceChild(SideChild):
    """Takes traced messages for the process that it keeps running.

    Args:
        ratio: share of all traces that is taken.
        complaints: counts what goes wrong.
        module: what to run.
        first_backoff_s: pause after the first failure, in seconds; it doubles with each further.
    """

    what = "the process that sends traces"
    lost, said, refused, stuck = "traces_lost", "traces_said", "traces_refused", "traces_stuck"
    counted = ("traces_pid", "traces_restarts")

    def __init__(
        self,
        ratio: float,
        complaints: Complaints,
        module: str = MODULE,
        first_backoff_s: float = FIRST_BACKOFF_S,
    ) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        fd = self._theirs.fileno()
        command = [sys.executable, "-m", module, "--fd", str(fd), "--parent", str(os.getpid())]
        super().__init__("traces", command, _SECRET, complaints, first_backoff_s, (fd,))
        self._bound = bound_of(ratio)
        self._room = float(MAX_PER_S)
        self._room_ns = 0
        self._noted = self._left_out = 0
        self._sent = dict.fromkeys(_SENT, 0)
        self._before = dict.fromkeys(_SENT, 0)

    def note(self, told: Told, begun_ns: int, now_ns: int) -> None:
        """Takes one answered message; never waits.

        Args:
            told: what it was about.
            begun_ns: when it came, on the server's clock.
            now_ns: that clock now.
        """
        asked = parse(told.traceparent)
        if asked is None or not asked.is_sampled or not is_taken(asked.trace_id, self._bound):
            return
        self._room = min(MAX_PER_S, self._room + (now_ns - self._room_ns) * MAX_PER_S / 1e9)
        self._room_ns = now_ns
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        end_ns = time.time_ns()
        try:
            self._ours.send(pack(_record(told, end_ns - max(0, now_ns - begun_ns), end_ns)))
            self._noted += 1
        except OSError:  # nobody reads, for now or any more
            self._left_out += 1

    def take(self, line: str) -> bool:
        """Takes the process's figures."""
        if not line.startswith(READY):
            return False
        try:
            values = json.loads(line.removeprefix(READY))
            self._sent = {name: int(values[name]) for name in _SENT}
        except (ValueError, KeyError, TypeError):
            return False
        self.works()
        return True

    def ended(self) -> None:
        """What it counted stays; the next one begins anew."""
        self._before = {name: self._before[name] + self._sent[name] for name in _SENT}
        self._sent = dict.fromkeys(_SENT, 0)

    def figures(self) -> dict[str, int]:
        """For STATS."""
        sent = {name: self._before[name] + self._sent[name] for name in _SENT}
        return {
            **super().figures(),
            "traces_noted": self._noted,
            "traces_left_out": self._left_out,
            "traces_spans_sent": sent["spans_sent"],
            "traces_spans_lost": sent["spans_dropped"] + sent["spans_failed"],
        }

    def close(self) -> None:
        """Closes the sockets, once the loop has ended."""
        self._ours.close()
        self._theirs.close()


def _record(told: Told, begin_ns: int, end_ns: int) -> Record:
    answer, figures, stop = told.answer, {}, ""
    if isinstance(answer, LookupReply):
        figures = {"ready": answer.ready, "pending": answer.pending}
    elif isinstance(answer, StoreReply):
        figures = {"held": answer.held, "copied": answer.copied}
        stop = answer.stop.name if answer.stop else ""
    return Record(
        _NAMES.get(told.op, str(told.op)),
        told.seq,
        told.request,
        told.traceparent,
        begin_ns,
        end_ns,
        told.engine,
        told.fingerprint,
        told.chunks,
        told.error.code.name if told.error is not None else "",
        figures,
        stop,
    )

"""The last requests that took long, for STATUS.

Purpose: an operator sees which requests were slow, whose and when, not only how many. Noted when an
answer is sent, which alone tells how long it took; a request that asked to wait is slow only by
what it took beyond that. Nothing of a request is kept but numbers and its namespace. Must not
know: sockets, what a request does. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from protocol.limits import MAX_STATUS_CHARS
from protocol.messages import Op, RegisterKvCache, Request
from protocol.namespace import fingerprint
from protocol.status import MAX_SLOW, SLOW_US, SlowRequest
from server.core.config import SECOND_NS
from server.core.peers import Peers
from server.core.told import SendReply, request_of

SLOW_NS = SLOW_US * 1000
_MS_NS = 1_000_000

_NAMES = {int(op): op.name for op in Op}


class _Noted(NamedTuple):
    op: int
    seq: int
    request: int
    client: str
    instance: bytes
    fingerprint: bytes
    spent_ns: int
    wait_ms: int
    sent_ns: int


class SlowRequests:
    """A ring of them.

    Args:
        peers: who asked.
        fingerprint_of: the namespace that a request is about; empty for none, or unknown.
    """

    def __init__(self, peers: Peers, fingerprint_of: Callable[[Request | None], bytes]) -> None:
        self._peers = peers
        self._fingerprint_of = fingerprint_of
        self._noted: deque[_Noted] = deque(maxlen=MAX_SLOW)

    def note(self, reply: SendReply, spent_ns: int) -> None:
        """Keeps what a reply was about, if its request was slow.

        Args:
            reply: sent just now.
            spent_ns: since the request came, a wait that it asked for included.
        """
        body = reply.body
        wait_ms: int = getattr(body, "wait_ms", 0)
        if spent_ns - wait_ms * _MS_NS <= SLOW_NS:
            return
        if isinstance(body, RegisterKvCache):
            space: bytes = fingerprint(body.namespace)
        else:
            space = self._fingerprint_of(body)
        peer = self._peers.get(reply.peer)
        client, instance = (
            ("", b"") if peer is None else (peer.process.client, peer.process.instance)
        )
        row = _Noted(
            reply.op,
            reply.seq,
            request_of(body),
            client[:MAX_STATUS_CHARS],
            instance,
            space,
            spent_ns,
            wait_ms,
            reply.begun_ns + spent_ns,
        )
        self._noted.append(row)

    def told(self, now_ns: int) -> tuple[SlowRequest, ...]:
        """For STATUS, the newest first."""
        return tuple(
            SlowRequest(
                op=_NAMES.get(one.op, str(one.op)),
                seq=one.seq,
                request=one.request,
                client=one.client,
                instance=one.instance,
                fingerprint=one.fingerprint,
                spent_us=one.spent_ns // 1000,
                wait_ms=one.wait_ms,
                age_s=max(0, now_ns - one.sent_ns) / SECOND_NS,
            )
            for one in reversed(self._noted)
        )

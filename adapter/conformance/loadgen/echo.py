"""A bare ZMQ echo: what a round trip costs here before any server does anything.

Purpose: the figure beside ``ping`` and ``lookup``: a blocking ROUTER in a process of its own and a
DEALER that sends one frame and waits for one. Must not know: the protocol, the server. The server
half runs as ``python -m adapter.conformance.loadgen echo ENDPOINT``; the client half in the load
generator's main thread.
"""

from __future__ import annotations

import sys

import zmq

SIZE_BYTES = 4
"""A request starts with the length of the reply it wants, u32 LE."""

IDLE_S = 900
"""The server half ends after this long without a request, should its parent have vanished."""


def serve(endpoint: str) -> None:
    """Answers each request with its own first bytes, until killed or idle.

    Args:
        endpoint: where to bind. One line on stdout says that it is bound.
    """
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.rcvtimeo = IDLE_S * 1000
        router.bind(endpoint)
        sys.stdout.write('{"event": "bound"}\n')
        sys.stdout.flush()
        while True:
            try:
                peer, frame = router.recv_multipart()
            except zmq.Again:
                return
            router.send_multipart([peer, frame[: int.from_bytes(frame[:SIZE_BYTES], "little")]])


class EchoClient:
    """The client half, with the socket options and the wait of the adapter's channel."""

    def __init__(self, endpoint: str, timeout_s: float = 5.0) -> None:
        """Connects.

        Args:
            endpoint: where the server half is bound.
            timeout_s: longest wait for one reply.
        """
        self._timeout_ms = int(timeout_s * 1000)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.connect(endpoint)
        self._socket.sndtimeo = self._timeout_ms

    def call(self, frame: bytes) -> bytes:
        """Sends one frame and waits for the reply.

        Args:
            frame: from ``frame_for``.

        Returns:
            The reply.

        Raises:
            TimeoutError: none came in time.
        """
        try:
            self._socket.send(frame)
        except zmq.Again:
            raise TimeoutError("nobody listens where the echo should be") from None
        if not self._socket.poll(self._timeout_ms):
            raise TimeoutError("the echo did not answer")
        reply: bytes = self._socket.recv()
        return reply

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close(0)
        self._context.term()


def frame_for(request_bytes: int, reply_bytes: int) -> bytes:
    """A request of one length that is answered with another.

    Args:
        request_bytes: length of the frame, at least 4.
        reply_bytes: length of its reply, at most ``request_bytes``.

    Returns:
        The frame.

    Raises:
        ValueError: lengths that no echo can serve.
    """
    if request_bytes < SIZE_BYTES or not 0 <= reply_bytes <= request_bytes:
        raise ValueError(f"an echo of {request_bytes} bytes cannot answer {reply_bytes} bytes")
    return reply_bytes.to_bytes(SIZE_BYTES, "little").ljust(request_bytes, b"\xa5")

"""Packets that wait for room in one side connection, with the descriptors they carry.

Purpose: a bounded queue that owns what it was given until it is sent or thrown away. Must not
know: who the peer is. Runs in: the side socket's thread.
"""

from __future__ import annotations

import socket
from collections import deque

from server.shell import packets
from server.shell.descriptors import Descriptor

MAX_PACKETS = 4096
MAX_BYTES = 1 << 20
"""An extent's packet is some hundred bytes, an error's up to half a kilobyte."""


class Outgoing:
    """Queue of one connection."""

    def __init__(self) -> None:
        self._packets: deque[tuple[bytes, Descriptor | None]] = deque()
        self._num_bytes = 0

    def __len__(self) -> int:
        """Packets that wait."""
        return len(self._packets)

    @property
    def is_too_long(self) -> bool:
        """Whether the peer has not read for so long that it is to be cut off."""
        return len(self._packets) > MAX_PACKETS or self._num_bytes > MAX_BYTES

    def put(self, packet: bytes, descriptor: Descriptor | None) -> None:
        """Appends a packet.

        Args:
            packet: at most MAX_SIDE_BYTES.
            descriptor: borrowed for this queue, which gives it back.
        """
        self._packets.append((packet, descriptor))
        self._num_bytes += len(packet)

    def flush(self, connection: socket.socket) -> None:
        """Sends what there is room for.

        Args:
            connection: SOCK_SEQPACKET.

        Raises:
            OSError: the connection broke.
        """
        while self._packets:
            packet, descriptor = self._packets[0]
            try:
                packets.send(connection, packet, -1 if descriptor is None else descriptor.fd)
            except BlockingIOError:
                return
            self._packets.popleft()
            self._num_bytes -= len(packet)
            if descriptor is not None:
                descriptor.give_back()

    def clear(self) -> None:
        """Throws everything away."""
        self._num_bytes = 0
        while self._packets:
            _, descriptor = self._packets.popleft()
            if descriptor is not None:
                descriptor.give_back()

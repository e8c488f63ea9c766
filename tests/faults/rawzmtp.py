"""ZMTP by hand over a bare socket, for what libzmq itself would never send.

Knows the greeting, the NULL handshake and the framing of ZMTP 3.0 (https://rfc.zeromq.org/spec/23/),
nothing of kvkeep. Runs in the pytest process and in its children.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

WAIT_S = 20.0

MORE, LONG, COMMAND = 1, 2, 4

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = bytes([COMMAND, len(_READY)]) + _READY


def frame(data: bytes, more: bool = False) -> bytes:
    """One frame of a message."""
    flags = MORE if more else 0
    if len(data) < 256:
        return bytes([flags, len(data)]) + data
    return struct.pack(">BQ", flags | LONG, len(data)) + data


def connect(url: str) -> socket.socket:
    """A bare connection to an endpoint, nothing said.

    Waits its turn where the listener's queue is full, as it is while the server's gate is shut.

    Args:
        url: ``ipc://`` or ``tcp://`` with a port.
    """
    scheme, _, rest = url.partition("://")
    if scheme != "ipc":
        host, _, port = rest.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=WAIT_S)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(WAIT_S)
    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            made.connect(rest)
        except BlockingIOError:  # a time-out does not make connect wait for room in the queue
            if time.monotonic() > end_s:
                made.close()
                raise
            time.sleep(0.001)
        except BaseException:
            made.close()
            raise
        else:
            return made


def greeted(url: str) -> socket.socket:
    """A connection that has finished its handshake as a DEALER."""
    made = connect(url)
    made.sendall(GREETING + READY)
    # The other side's greeting and READY; how long the latter is does not matter here.
    got = b""
    while len(got) < len(GREETING) + 2 or len(got) < len(GREETING) + 2 + got[len(GREETING) + 1]:
        part = made.recv(4096)
        if not part:
            raise ConnectionError("cut during the handshake")
        got += part
    return made


def hoard(url: str, frame_bytes: int) -> None:
    """Sends one message that never ends, connecting again whenever it is cut, until killed."""
    piece = frame(bytes(frame_bytes), more=True) * max(1, (1 << 16) // (frame_bytes + 2))
    while True:
        try:
            with greeted(url) as one:
                print("hoarding", flush=True)
                while True:
                    one.sendall(piece)
        except OSError:
            print("cut", flush=True)


if __name__ == "__main__":
    hoard(sys.argv[1], int(sys.argv[2]))

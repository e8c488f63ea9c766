"""The side socket's part for a client that cannot pass descriptors, as JSON lines.

Written from docs/protocol.md alone: it knows sockets, mappings and MessagePack, and imports nothing
of kvkeep. One question per line on standard input, one answer per line on standard output. Runs as
a child of the Node.js client and is the process that the server watches. With ``--spoil`` it flips
a bit of the pool before each comparison, to show that the comparison sees it.
"""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import random
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgpack

MAX_PACKET_BYTES = 4096
RECORDS_OFFSET_BYTES = 4096
RECORD_BYTES = 128
GENERATION_OFFSET_BYTES = 56
TIMEOUT_S = 20.0


class Side:
    """One side connection, the pool it offered and the extents it was given."""

    def __init__(self, spoil: bool) -> None:
        self.spoil = spoil
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT_S)
        self.pool: mmap.mmap | None = None
        self.extents: dict[int, tuple[dict[str, Any], mmap.mmap]] = {}

    def _send(self, packet: dict[str, Any], descriptors: list[int] | None = None) -> None:
        rights = array.array("i", descriptors or [])
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        self.socket.sendmsg([msgpack.packb(packet)], control)

    def _receive(self) -> dict[str, Any]:
        data, control, flags, _ = self.socket.recvmsg(MAX_PACKET_BYTES, socket.CMSG_SPACE(4))
        if not data:
            raise ConnectionError("the server closed the side connection")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ConnectionError("a packet was cut off")
        packet: dict[str, Any] = msgpack.unpackb(data)
        if packet["type"] == "extent":
            ((_, _, raw),) = control
            (descriptor,) = array.array("i", raw)
            self._map(packet, descriptor)
        return packet

    def _expect(self, kind: str) -> dict[str, Any]:
        while True:
            packet = self._receive()
            if packet["type"] == kind:
                return packet
            if packet["type"] != "extent":
                raise ConnectionError(f"{packet} came instead of {kind}")

    def _map(self, packet: dict[str, Any], descriptor: int) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        packet["writable"] = flags & os.O_ACCMODE != os.O_RDONLY
        size = packet["file_bytes"]
        if os.fstat(descriptor).st_size != size:
            raise ConnectionError(f"extent {packet['extent']} is not of {size} bytes")
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(descriptor)
        self.extents[packet["extent"]] = (packet, mapping)

    def connect(self, path: str, instance: str) -> dict[str, Any]:
        """Says hello; the welcome with its bytes in hex."""
        self.socket.connect(path)
        hello = {"type": "hello", "major": 1, "minor": 0, "instance": bytes.fromhex(instance)}
        self._send(hello)
        said = self._expect("welcome")
        return {k: v.hex() if isinstance(v, bytes) else v for k, v in said.items()}

    def offer(self, pool: str, size_bytes: int) -> dict[str, Any]:
        """Makes a sealed memfd full of noise and passes it."""
        descriptor = os.memfd_create("pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        self.pool = mmap.mmap(descriptor, size_bytes)
        self.pool[:] = random.Random(size_bytes).randbytes(size_bytes)
        packet = {"type": "pool", "pool": bytes.fromhex(pool), "size_bytes": size_bytes}
        self._send(packet, [descriptor])
        os.close(descriptor)
        accepted = self._expect("pool_accepted")
        return {"pool": accepted["pool"].hex()}

    def wait_for_extents(self, count: int) -> dict[str, Any]:
        """Waits until so many extents are mapped, and touches each page of them."""
        while len(self.extents) < count:
            self._receive()
        for _, mapping in self.extents.values():
            sum(mapping[:: mmap.PAGESIZE])
        return {"extents": [packet for packet, _ in self.extents.values()]}

    def compare(self, extent: int, slot: int, pool: list[dict[str, int]]) -> dict[str, Any]:
        """Compares a slot with parts of the pool, then reads the slot's generation."""
        packet, mapping = self.extents[extent]
        at = packet["data_offset_bytes"] + slot * packet["slot_bytes"]
        copied = mapping[at : at + packet["payload_bytes"]]
        assert self.pool is not None
        if self.spoil:
            self.pool[pool[-1]["offset"]] ^= 1
        parts = [self.pool[p["offset"] : p["offset"] + p["size"]] for p in pool]
        record = RECORDS_OFFSET_BYTES + slot * RECORD_BYTES + GENERATION_OFFSET_BYTES
        generation = int.from_bytes(mapping[record : record + 8], "little")
        return {"equal": copied == b"".join(parts), "generation": generation}


def main() -> None:
    """Answers questions until standard input ends."""
    side = Side(spoil="--spoil" in sys.argv[1:])
    answers: dict[str, Callable[..., dict[str, Any]]] = {
        "connect": side.connect,
        "offer": side.offer,
        "extents": side.wait_for_extents,
        "compare": side.compare,
    }
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = answers[question.pop("do")](**question)
        except (OSError, KeyError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

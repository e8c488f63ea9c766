"""A healthy engine beside the trouble, and raw peers that make trouble.

What a wrong message, a dying peer or a stopped process does to others is seen by a ``Bystander``:
it keeps bytes in the server and checks all of them. Built on the wire client alone. Runs in the
pytest process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import zmq

from protocol import frames
from protocol.errors import ReplyError
from protocol.layout import pack_pages, unpack_slots
from protocol.messages import (
    Done,
    Retrieve,
    RetrieveReply,
    Stats,
    StatsReply,
    Store,
    Unregister,
)
from protocol.namespace import Namespace
from tests.wire.client import WAIT_S, Engine, WireClient, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

NUM_KEPT = 24


def fill(engine: Engine, seed: int) -> None:
    """Random bytes in every page of an engine's pool."""
    rng = np.random.default_rng(seed)
    engine.pages[:] = rng.integers(0, 256, engine.pages.shape, dtype=np.uint8)


def stats(engine: Engine) -> dict[str, int]:
    """The server's counters and gauges."""
    return engine.wire.call(Stats(), StatsReply).values


def retrieve(engine: Engine, lease: bytes, count: int, start: int = 0) -> Any:
    """RETRIEVEs; returns SLOT_DTYPE[count]: where the chunks lie."""
    body = Retrieve(session=engine.session, lease=lease, start=start, count=count)
    reply = engine.wire.call(body, RetrieveReply)
    return unpack_slots(reply.slots, count, reply.num_shards)[:, 0]


def is_saved(engine: Engine, keys: list[bytes]) -> bool:
    """Whether a save of pages 0 and up worked; no is an answer that invites to try again."""
    try:
        return engine.save(keys, list(range(len(keys)))) == len(keys)
    except ReplyError as error:
        if not error.retryable:
            raise
        return False


def submit_store(
    engine: Engine,
    keys: list[bytes],
    pages: list[int],
    store: int,
    start: int = 0,
    timeout_s: float = WAIT_S,
) -> int:
    """Sends a STORE of ``keys[start:]`` without waiting; returns its seq."""
    return engine.wire.submit(
        Store(
            session=engine.session,
            store=store,
            request=1,
            shard=engine.shard,
            start=start,
            parent=keys[start - 1] if start else b"",
            keys=b"".join(keys[start:]),
            pages=pack_pages(pages),
        ),
        timeout_s,
    )


def read_slots(engine: Engine, slots: Any) -> Any:
    """Bytes of retrieved chunks, from this engine's own mapping: uint8[count, page_bytes]."""
    rows = []
    for slot in slots:
        extent = engine.extents[int(slot["extent"])]
        begin = extent.geometry.data_offset_bytes + int(slot["slot"]) * extent.geometry.slot_bytes
        rows.append(extent.view[begin : begin + engine.page_bytes].copy())
    return np.stack(rows)


def read_all(engine: Engine, keys: list[bytes], request: int = 1) -> Any:
    """Leases, reads and gives back chunks that were saved before.

    What was saved just now may lie in an extent that this engine has not mapped yet.

    Returns:
        uint8[len(keys), page_bytes].
    """

    def is_ready() -> bool:
        engine.pump()
        return engine.lookup(keys, request).ready == len(keys)

    assert wait_until(is_ready, 10), engine.lookup(keys, request)
    found = engine.lookup(keys, request)
    data = engine.read(found.lease, found.ready)
    assert engine.release(found.lease) == len(keys)
    return data


@contextmanager
def engaged(
    server: ServerProcess,
    namespace: Namespace | None = None,
    num_pages: int = 64,
    register: bool = True,
) -> Iterator[Engine]:
    """An engine that takes side packets while it waits, and leaves at the end.

    Args:
        server: where.
        namespace: its own by default.
        num_pages: of its pool.
        register: False for a test that registers it itself.
    """
    engine = Engine(server.url, server.side_path, namespace, num_pages)
    try:
        if register:
            engine.register()
            engine.pump_while_waiting()
        yield engine
    finally:
        try:
            if engine.session and server.process.poll() is None:
                # Closing alone would leave the session: this process lives on.
                engine.wire.on_wait = None  # an extent that comes now is nobody's any more
                engine.wire.call(Unregister(session=engine.session), Done)
        finally:
            engine.close()


class Bystander:
    """An engine whose every saved byte must stay as it is.

    Attributes:
        engine: the engine, for further requests of the test.
    """

    def __init__(self, server: ServerProcess, model: str = "") -> None:
        self._server = server
        name = model or f"bystander/{os.urandom(4).hex()}"
        self.engine = Engine(server.url, server.side_path, make_namespace(model=name))
        self.engine.register()
        self.engine.pump_while_waiting()
        fill(self.engine, 11)
        self._kept = self.engine.pages.copy()
        self._keys = make_keys(int.from_bytes(os.urandom(4), "little"), NUM_KEPT)
        assert self.engine.save(self._keys, list(range(NUM_KEPT))) == NUM_KEPT
        self._round = 0

    def check(self) -> None:
        """Everything saved is there byte for byte, a new save works, nothing stays leased."""
        engine = self.engine
        self._round += 1
        assert self._server.process.poll() is None, self._server.log()
        self._read(self._keys, self._kept[:NUM_KEPT])
        fill(engine, 1000 + self._round)
        keys = make_keys(int.from_bytes(os.urandom(4), "little"), 4)
        pages = [60, 3, 17, 41]
        assert engine.save(keys, pages) == 4
        self._read(keys, engine.pages[pages])
        assert "Traceback" not in self._server.log(), self._server.log()

    def _read(self, keys: list[bytes], expected: Any) -> None:
        data = read_all(self.engine, keys, self._round)
        assert np.array_equal(data, expected)

    def close(self) -> None:
        """Leaves."""
        try:
            if self._server.process.poll() is None:
                self.engine.wire.call(Unregister(session=self.engine.session), Done)
        finally:
            self.engine.close()


class RawPeer:
    """Sends any frame; reads replies one by one. Says no HELLO of its own."""

    def __init__(self, url: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(url)

    def ask(self, frame: bytes, wait_s: float = 15.0) -> frames.Reply:
        """Sends a frame and returns the reply."""
        self.socket.send(frame)
        assert self.socket.poll(int(wait_s * 1000)), frame[:80]
        return frames.unpack_reply(self.socket.recv())

    def close(self) -> None:
        """Closes socket and context."""
        self.socket.close()
        self._context.term()


def plain_frame(
    wire: WireClient, op: int, body: dict[str, Any], seq: int = 900_001, deadline_ns: int = 0
) -> bytes:
    """A request frame with any operation and body, stamped for this connection."""
    welcome = wire.session.welcome
    assert welcome is not None
    packed: bytes = msgpack.packb([op, seq, welcome.epoch, welcome.arena, deadline_ns, body])
    return packed


def ask_plain(wire: WireClient, op: int, body: dict[str, Any]) -> frames.Reply:
    """Sends a body that the typed client could not, over a connection that said HELLO."""
    wire.socket.send(plain_frame(wire, op, body))
    assert wire.socket.poll(15_000)
    return frames.unpack_reply(wire.socket.recv())


def error_of(wire: WireClient, op: int, body: dict[str, Any]) -> ReplyError:
    """The error that such a body is answered with."""
    reply = ask_plain(wire, op, body)
    assert reply.error is not None, reply
    return reply.error

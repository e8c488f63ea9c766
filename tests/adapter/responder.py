"""A small server to test the adapter's line against: it says what a test tells it to say.

A real ROUTER, a real side socket, real descriptors, built on ``protocol``; no cache behind it. It
runs in a thread of the test's process, so tests can make it silent, slow, forgetful or rude.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from protocol import extents as extent_format
from protocol import frames, messages, side
from protocol.errors import ErrorCode, RequestError
from protocol.extents import ExtentGeometry
from protocol.ids import ArenaId, Epoch, ExtentId, Fingerprint, Token
from protocol.messages import Body, Op, Request
from protocol.namespace import LayerGroup, Namespace, fingerprint

PAGE_BYTES = 8192

Handler = Callable[[Request], Body | None]
"""A reply; None for none at all; RequestError to refuse."""


def namespace(
    model: str = "test", chunk_blocks: int = 1, page_bytes: int = PAGE_BYTES
) -> Namespace:
    return Namespace(
        model_id=model,
        config_digest=b"c",
        weights_digest=b"w",
        host_version="1",
        kv_dtype="float16",
        attention_backend="none",
        kv_layout="none",
        tokens_per_block=32,
        chunk_blocks=chunk_blocks,
        groups=(LayerGroup(layers=(0,), page_bytes=page_bytes),),
    )


def geometry(
    extent: int, owner: Namespace, num_slots: int = 4, generation_base: int = 0
) -> ExtentGeometry:
    payload = owner.slot_payload_bytes(0)
    file_bytes = (
        extent_format.RECORDS_OFFSET_BYTES
        + extent_format.align(num_slots * extent_format.RECORD_DTYPE.itemsize)
        + num_slots * extent_format.align(payload)
    )
    cut = extent_format.cut(
        ExtentId(extent), fingerprint(owner), 0, owner.chunk_blocks, payload, file_bytes
    )
    assert cut.num_slots == num_slots
    return cut


class ExtentFile:
    """An extent in a memfd: slot i holds bytes derived from ``seed`` and carries generation i+1."""

    def __init__(self, cut: ExtentGeometry, arena: ArenaId, seed: int = 0) -> None:
        self.geometry = cut
        self.fd = os.memfd_create("extent", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, cut.file_bytes)
        os.pwrite(self.fd, extent_format.pack_header(cut, arena), 0)
        self.payloads = np.random.default_rng(seed).integers(
            0, 256, (cut.num_slots, cut.payload_bytes), dtype=np.uint8
        )
        for slot in range(cut.num_slots):
            os.pwrite(self.fd, self.payloads[slot].tobytes(), cut.slot_offset_bytes(slot))
            self.set_generation(slot, slot + 1)

    def set_generation(self, slot: int, generation: int) -> None:
        blob = generation.to_bytes(8, "little")
        os.pwrite(self.fd, blob, self.geometry.generation_offset_bytes(slot))

    def close(self) -> None:
        os.close(self.fd)

    def given(self, session: int) -> side.ExtentGiven:
        cut = self.geometry
        return side.ExtentGiven(
            session=session,
            extent=cut.extent,
            shard=cut.shard,
            num_slots=cut.num_slots,
            slot_bytes=cut.slot_bytes,
            payload_bytes=cut.payload_bytes,
            data_offset_bytes=cut.data_offset_bytes,
            file_bytes=cut.file_bytes,
        )

    def read_only_fd(self) -> int:
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)


class Responder:
    """The server. ``with Responder(folder) as server: ...``"""

    def __init__(self, folder: Path, url: str | None = None, heartbeat_s: float = 0.1) -> None:
        self.base = str(folder / "kvkeep.sock")
        self.url = url or f"ipc://{self.base}"
        self.epoch = Epoch(os.urandom(16))
        self.arena = ArenaId(os.urandom(16))
        self.heartbeat_s = heartbeat_s
        self.capabilities: tuple[str, ...] = ("stats",)
        self.seen: list[tuple[Op, Request]] = []
        self.pools: list[int] = []
        self.drained: list[side.Drained] = []
        self.handlers: dict[Op, Handler] = {}
        self.mute: set[Op] = set()
        self.delay_s: dict[Op, float] = {}
        self.refuse_pool: ErrorCode | None = None
        self.refuse_side: ErrorCode | None = None
        self.num_sessions = 0
        self.num_hellos = 0
        self._tokens: set[Token] = set()
        self._sides: list[socket.socket] = []
        self._later: list[tuple[float, list[bytes]]] = []
        self._commands: deque[Callable[[], None]] = deque()
        self._stopping = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._context: zmq.Context[Any] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(self.url)
        if self.url.endswith("*"):
            self.url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.base + ".side")
        self._listener.bind(self.base + ".side")
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Responder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server as a kill would: no word to anybody. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(5)
        for connection in (*self._sides, self._listener):
            connection.close()
        for fd in self.pools:
            os.close(fd)
        self._router.close(0)
        self._context.term()
        os.close(self._wake)

    # --- what tests ask -------------------------------------------------------------------

    def ops(self) -> list[Op]:
        return [op for op, _ in list(self.seen)]

    def bodies(self, op: Op) -> list[Any]:
        return [body for seen, body in list(self.seen) if seen == op]

    def run(self, command: Callable[[], None]) -> None:
        """Runs something on the server's thread."""
        self._commands.append(command)
        os.eventfd_write(self._wake, 1)

    def give(self, file: ExtentFile, session: int | None = None) -> None:
        packet = side.pack(file.given(self.num_sessions if session is None else session))
        fd = file.read_only_fd()

        def send() -> None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())]
            self._sides[-1].sendmsg([packet], rights)
            os.close(fd)

        self.run(send)

    def take(self, extent: int) -> None:
        packet = side.pack(side.ExtentTaken(session=self.num_sessions, extent=extent))
        self.run(lambda: void(self._sides[-1].send(packet)))

    def drop_sides(self) -> None:
        """Closes the side connections; their tokens are void."""

        def drop() -> None:
            for connection in self._sides:
                connection.close()
            self._sides.clear()
            self._tokens.clear()

        self.run(drop)

    def make_token(self) -> Token:
        token = Token(os.urandom(16))
        self._tokens.add(token)
        return token

    def forget_tokens(self) -> None:
        self.run(self._tokens.clear)

    # --- the server's thread --------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            watched: list[tuple[Any, int]] = [(self._router, zmq.POLLIN), (self._wake, zmq.POLLIN)]
            watched += [(s.fileno(), zmq.POLLIN) for s in (self._listener, *self._sides)]
            zmq.zmq_poll(watched, 20)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while self._commands:
                self._commands.popleft()()
            with contextlib.suppress(BlockingIOError):
                self._sides.append(self._listener.accept()[0])
                self._sides[-1].setblocking(False)  # recv_fds passes no flags on in 3.11
            for connection in list(self._sides):
                self._serve_side(connection)
            self._serve_router()
            now = time.monotonic()
            for at, parts in list(self._later):
                if now >= at:
                    self._later.remove((at, parts))
                    self._router.send_multipart(parts)

    def _serve_side(self, connection: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(connection, 8192, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            connection.close()
            self._sides.remove(connection)
            return
        packet = side.unpack_from_client(data)
        if isinstance(packet, side.SideHello):
            if self.refuse_side is not None:
                self._answer(connection, side.SideError(code=self.refuse_side, message="no"))
                connection.close()
                self._sides.remove(connection)
                return
            token = self.make_token()
            welcome = side.Welcome(
                token=token, epoch=self.epoch, arena=self.arena, endpoint=self.url
            )
            self._answer(connection, welcome)
        elif isinstance(packet, side.Drained):
            self.drained.append(packet)
        elif self.refuse_pool is not None:
            error = side.SideError(code=self.refuse_pool, message="no seal", pool=packet.pool)
            self._answer(connection, error)
            for fd in fds:
                os.close(fd)
        else:
            self.pools += fds
            self._answer(connection, side.PoolAccepted(pool=packet.pool))

    @staticmethod
    def _answer(connection: socket.socket, packet: side.FromServer) -> None:
        """Who asked may have left meanwhile, as an engine does that closes: nobody's fault."""
        with contextlib.suppress(OSError):
            connection.send(side.pack(packet))

    def _serve_router(self) -> None:
        while True:
            try:
                peer, frame = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            envelope = frames.unpack_request(frame)
            body = frames.request_body(envelope)
            op = Op(envelope.op)
            self.seen.append((op, body))
            if op in self.mute:
                continue
            try:
                if op != Op.HELLO and envelope.epoch != self.epoch:
                    raise RequestError(ErrorCode.STALE_EPOCH, "another epoch")
                handler = self.handlers.get(op, self._default)
                answer = handler(body)
                if answer is None:
                    continue
                reply = frames.pack_reply(op, envelope.seq, answer)
            except RequestError as error:
                reply = frames.pack_error(op, envelope.seq, error)
            delay_s = self.delay_s.get(op, 0.0)
            if delay_s:
                self._later.append((time.monotonic() + delay_s, [peer, reply]))
            else:
                self._router.send_multipart([peer, reply])

    def _default(self, body: Request) -> Body:
        if isinstance(body, messages.Hello):
            if body.token not in self._tokens:
                raise RequestError(ErrorCode.UNAUTHENTICATED, "no", side=self.base + ".side")
            self.num_hellos += 1
            return messages.HelloReply(
                epoch=self.epoch,
                arena=self.arena,
                now_ns=time.monotonic_ns(),
                major=messages.VERSION_MAJOR,
                minor=0,
                capabilities=self.capabilities,
                max_blocks=16_384,
                max_frame_bytes=1 << 20,
                heartbeat_s=self.heartbeat_s,
            )
        if isinstance(body, messages.RegisterKvCache):
            self.num_sessions += 1
            return messages.RegisterKvCacheReply(
                session=self.num_sessions,
                fingerprint=Fingerprint(fingerprint(body.namespace)),
                extents=0,
            )
        if isinstance(body, messages.Heartbeat):
            return messages.HeartbeatReply(epoch=self.epoch)
        if isinstance(body, (messages.Release, messages.EndSession)):
            return messages.Released(chunks=1)
        if isinstance(body, messages.Lookup):
            return messages.LookupReply(lease=b"L" * 16, ready=len(body.keys) // 16)
        if isinstance(body, messages.Store):
            return messages.StoreReply(held=0, copied=len(body.keys) // 16)
        return messages.Done()


def void(_: object) -> None:
    """Makes an expression a command."""


def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """Polls until a condition holds and returns its value; fails after the time."""
    end_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end_s, "the condition did not come true in time"
        time.sleep(0.002)

"""B47: whatever bytes a peer sends, it gets an error or is cut off; engines at work notice nothing.

Frames from strangers are tried in ``tests/server/test_app.py``; here the sender has said HELLO,
names things of others, or talks nonsense on the side socket, while an engine saves and loads.
"""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import suppress

import msgpack
import pytest

from protocol import frames, limits, side
from protocol.errors import ErrorCode, ReplyError
from protocol.messages import (
    REQUEST_TYPES,
    Cancel,
    Commit,
    Done,
    EndSession,
    Heartbeat,
    HeartbeatReply,
    Lookup,
    LookupReply,
    Mapped,
    Ping,
    Release,
    Request,
    Retrieve,
    Store,
    StoreReply,
    Unregister,
)
from tests.faults.bystander import Bystander, engaged, plain_frame, stats
from tests.protocol.strategies import valid_plain
from tests.wire.client import Engine, SideClient, expect, make_keys, make_pool
from tests.wire.process import ServerProcess, rss_bytes

SEED = 20_261_129


class Work(threading.Thread):
    """Keeps a bystander saving and loading until it is stopped."""

    def __init__(self, bystander: Bystander) -> None:
        super().__init__()
        self._bystander = bystander
        self._over = threading.Event()
        self.error: BaseException | None = None
        self.num_rounds = 0

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._bystander.check()
                self.num_rounds += 1
        except BaseException as error:  # noqa: BLE001 - raised again by stop()
            self.error = error

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        assert self.num_rounds > 0


@pytest.fixture
def work(bystander: Bystander) -> Iterator[Work]:
    thread = Work(bystander)
    thread.start()
    yield thread
    thread.stop()


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """A frame with bits flipped, bytes cut, doubled or put in."""
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data)) if data else 0
        act = rng.randrange(5)
        if act == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif act == 1 and data:
            data[at] = rng.randrange(256)
        elif act == 2:
            del data[at:]
        elif act == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            data[at:at] = rng.choice([b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81"])
    return bytes(data[: limits.MAX_FRAME_BYTES])


def test_mutated_requests_of_a_greeted_peer(server: ServerProcess, work: Work) -> None:
    rng = random.Random(SEED)
    harmless = [op for op in REQUEST_TYPES if REQUEST_TYPES[op].__name__ not in ("Clear", "Delete")]
    with engaged(server) as engine:
        wire = engine.wire
        before = rss_bytes(server.pid)
        for number in range(1500):
            op = rng.choice(harmless)
            frame = plain_frame(wire, op, valid_plain(REQUEST_TYPES[op]), seq=10_000 + number)
            wire.socket.send(mutated(frame, rng))
            if number % 16 == 15:  # one reply each, whatever it was
                for _ in range(16):
                    assert wire.socket.poll(15_000), number
                    frames.unpack_reply(wire.socket.recv())
        while wire.socket.poll(50):
            frames.unpack_reply(wire.socket.recv())
        assert rss_bytes(server.pid) - before < 8 << 20
    assert "Traceback" not in server.log()


class Planted:
    """A pickle that would run a command if anybody loaded it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_not_loaded_wherever_they_stand(
    server: ServerProcess, work: Work, tmp_path: object, protocol: int
) -> None:
    planted = f"{tmp_path}/planted"
    payload = pickle.dumps(Planted(planted), protocol)
    with Engine(server.url, server.side_path) as engine:
        wire = engine.wire
        bodies = [
            payload,
            msgpack.packb([1, 1, payload, payload, 0, {}]),
            plain_frame(wire, 10, {"session": payload}),
            plain_frame(wire, 10, {"session": 1, "request": 1, "start": 0, "keys": payload}),
            msgpack.packb([1, 1, b"", b"", 0, msgpack.ExtType(1, payload)]),
        ]
        for body in bodies:
            wire.socket.send(body)
            assert wire.socket.poll(15_000)
            error = frames.unpack_reply(wire.socket.recv()).error
            assert error is not None
            assert error.code in (
                ErrorCode.MALFORMED,
                ErrorCode.COUNT_MISMATCH,
                ErrorCode.UNKNOWN_SESSION,
            )
    stranger = SideClient(server.side_path)
    stranger.send(payload)
    assert is_refused(stranger)
    stranger.close()
    assert not os.path.exists(planted)


def is_refused(client: SideClient) -> bool:
    """Whether the side socket answered with an error, or closed."""
    try:
        answer, fds = client.receive()
    except (ConnectionError, OSError):
        return True
    return isinstance(answer, side.SideError) and not fds


def foreign_requests(victim: Engine, lease: bytes, store: int) -> list[Request]:
    """Everything one can ask about another engine's things."""
    session, keys = victim.session, b"".join(make_keys(8, 2))
    return [
        Lookup(session=session, request=1, start=0, keys=keys),
        Retrieve(session=session, lease=lease, start=0, count=1),
        Release(session=session, lease=lease, all_readers=True),
        EndSession(session=session, request=1),
        Heartbeat(session=session),
        Mapped(session=session, unmapped=b"\1\0\0\0"),
        Store(
            session=session,
            store=99,
            request=1,
            shard=0,
            start=0,
            parent=b"",
            keys=keys,
            pages=bytes(8),
        ),
        Commit(session=session, store=store, count=1),
        Cancel(session=session, store=store),
        Unregister(session=session),
    ]


def test_another_engines_session_lease_and_store_are_out_of_reach(
    server: ServerProcess, bystander: Bystander
) -> None:
    keys = make_keys(7, 6)
    with engaged(server) as victim, engaged(server) as thief:
        assert victim.save(keys, list(range(6))) == 6
        found = victim.lookup(keys, 1)
        more = make_keys(9, 3)
        store, reply = victim.store(more, [7, 8, 9])
        assert reply.copied == 3
        before = stats(victim)
        for request in foreign_requests(victim, found.lease, store):
            with pytest.raises(ReplyError) as caught:
                expect(thief.wire.reply(thief.wire.submit(request)), Done)
            assert caught.value.code == ErrorCode.UNKNOWN_SESSION, request
        own = thief.session
        for request, code in [
            (Retrieve(session=own, lease=found.lease, start=0, count=1), ErrorCode.UNKNOWN_LEASE),
            (Commit(session=own, store=store, count=1), ErrorCode.UNKNOWN_STORE),
        ]:
            with pytest.raises(ReplyError) as caught:
                expect(thief.wire.reply(thief.wire.submit(request)), Done)
            assert caught.value.code == code
        assert thief.release(found.lease) == 0
        thief.wire.call(Cancel(session=own, store=store), Done)
        thief.wire.call(Heartbeat(session=own), HeartbeatReply)
        after = stats(victim)
        for name in ("leases", "stores", "sessions", "pinned_slots", "slots_reserved"):
            assert after[name] == before[name], name
        assert victim.commit(store, 3).published == 3
        assert victim.read(found.lease, 6).shape[0] == 6
        assert victim.release(found.lease) == 6
    bystander.check()


def test_another_engines_token_serves_nobody_else(
    server: ServerProcess, bystander: Bystander
) -> None:
    """A token with a wrong instance is refused; guessing one is guessing 128 bits."""
    victim = bystander.engine
    with Engine(server.url, server.side_path) as thief:
        for token, instance in [
            (victim.welcome.token, thief.instance),
            (os.urandom(16), victim.instance),
            (bytes(16), victim.instance),
        ]:
            body = {"token": token, "instance": instance, "major": 1, "minor": 0}
            thief.wire.socket.send(msgpack.packb([1, 5, b"", b"", 0, body]))
            assert thief.wire.socket.poll(15_000)
            assert frames.unpack_reply(thief.wire.socket.recv()).error is not None
    bystander.check()


def num_fds(pid: int) -> int:
    """Descriptors of a process, without those of its arena: engines at work make it grow."""
    names = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sum(".extent" not in name for name in names)


def side_garbage() -> list[bytes]:
    rng = random.Random(SEED)
    good = side.pack(side.SideHello(major=1, minor=0, instance=b"i" * 16))
    offer = side.pack(side.PoolOffer(pool=b"p" * 16, size_bytes=4096))
    return [
        b"\0",
        rng.randbytes(100),
        rng.randbytes(limits.MAX_SIDE_BYTES),
        b"\xff" * 100_000,
        offer,  # before the hello
        good + b"\0",
        good[:-1],
        *(mutated(good, rng) for _ in range(20)),
    ]


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_garbage_on_the_side_socket_ends_that_connection_alone(
    server: ServerProcess, work: Work, with_descriptor: bool
) -> None:
    before = num_fds(server.pid)
    for packet in side_garbage():
        stranger = SideClient(server.side_path)
        fd, _ = make_pool(4096)
        try:
            stranger.send(packet, [fd] * 3 if with_descriptor else [])
            answered = is_refused(stranger) or stranger.socket.fileno() >= 0
            assert answered
        except (BrokenPipeError, ConnectionError):
            pass  # cut off already
        finally:
            os.close(fd)
            stranger.close()
    with Engine(server.url, server.side_path) as engine:
        engine.wire.call(Ping(), Done)
    # Nothing of what they passed stays open in the server.
    assert num_fds(server.pid) <= before + 4


def test_huge_lengths_cost_nothing(server: ServerProcess, work: Work) -> None:
    header = [
        b"\xdd" + (2**32 - 1).to_bytes(4, "big"),
        b"\xdf" + (2**32 - 1).to_bytes(4, "big"),
        b"\xc6" + (2**32 - 1).to_bytes(4, "big"),
        b"\xdb" + (2**32 - 1).to_bytes(4, "big"),
        b"\xc9" + (2**32 - 1).to_bytes(4, "big"),
        b"\x91" * 900_000,
        b"\xdd\x00\x0f\x42\x40" + b"\xc0" * 1_000_000,
        b"\x96\x0a\x01\xc4\x00\xc4\x00\x00\xdf" + (2**31).to_bytes(4, "big"),
    ]
    with Engine(server.url, server.side_path) as engine:
        before = rss_bytes(server.pid)
        for _ in range(5):
            for blob in header:
                engine.wire.socket.send(blob)
                assert engine.wire.socket.poll(15_000)
                error = frames.unpack_reply(engine.wire.socket.recv()).error
                assert error is not None
                assert error.code in (ErrorCode.MALFORMED, ErrorCode.TOO_LARGE)
        assert rss_bytes(server.pid) - before < 8 << 20


def test_the_endpoint_and_side_socket_are_the_users_own(server: ServerProcess) -> None:
    for path in (server.url.removeprefix("ipc://"), server.side_path):
        assert os.stat(path).st_mode & 0o077 == 0, path
    assert server.arena_dir.stat().st_mode & 0o077 == 0


def test_a_lookup_of_the_most_keys_is_answered(server: ServerProcess, work: Work) -> None:
    keys = b"".join(make_keys(3, limits.MAX_BLOCKS_PER_MESSAGE))
    with engaged(server) as engine:
        body = Lookup(session=engine.session, request=1, start=0, keys=keys)
        assert engine.wire.call(body, LookupReply).ready == 0
        one_more = {"session": engine.session, "request": 1, "start": 0, "keys": keys + b"k" * 16}
        engine.wire.socket.send(plain_frame(engine.wire, 10, one_more))
        assert engine.wire.socket.poll(15_000)
        error = frames.unpack_reply(engine.wire.socket.recv()).error
        assert error is not None
        assert error.code == ErrorCode.MALFORMED
        reply = engine.wire.call(
            Store(
                session=engine.session,
                store=1,
                request=1,
                shard=0,
                start=0,
                parent=b"",
                keys=make_keys(3, 1)[0],
                pages=bytes(4),
            ),
            StoreReply,
        )
        assert reply.copied == 1

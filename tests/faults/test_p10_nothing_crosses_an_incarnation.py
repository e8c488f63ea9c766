"""P10: what was meant for one server does nothing in the next; what CLEAR removed stays removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol import frames
from protocol.errors import ErrorCode, ReplyError
from protocol.ids import InstanceId, Token
from protocol.messages import (
    REQUEST_TYPES,
    ChunkCountReply,
    Clear,
    Commit,
    CommitReply,
    Delete,
    Hello,
    Stats,
    StopReason,
)
from protocol.namespace import fingerprint
from protocol.session import ClientSession
from tests.faults import rawzmtp
from tests.faults.bystander import (
    Bystander,
    engaged,
    fill,
    plain_frame,
    read_all,
    read_slots,
    retrieve,
    stats,
)
from tests.protocol.strategies import valid_plain
from tests.wire.client import Engine, WireClient, make_keys, make_namespace
from tests.wire.process import ServerProcess


def test_p10_requests_for_the_last_server_are_refused_by_the_next(
    short_dir: Path, shm_dir: Path
) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        first = Engine(server.url, server.side_path)
        first.register()
        keys = make_keys(1, 4)
        store, reply = first.store(keys, [0, 1, 2, 3])
        assert reply.copied == 4
        late = [
            plain_frame(first.wire, op, valid_plain(kind), seq=op)
            for op, kind in REQUEST_TYPES.items()
            if kind is not Hello
        ]
        body = Commit(session=first.session, store=store, count=4)
        _, commit = first.wire.session.request(body, time.monotonic_ns(), 60 * 10**9)
        server.kill()
    with ServerProcess(short_dir, shm_dir / "a") as server, engaged(server) as engine:
        for frame in [*late, commit]:
            engine.wire.socket.send(frame)
            assert engine.wire.socket.poll(15_000)
            error = frames.unpack_reply(engine.wire.socket.recv()).error
            assert error is not None
            assert error.code == ErrorCode.STALE_EPOCH
        assert engine.lookup(keys).ready == 0
        assert stats(engine)["slots_held"] == 0
        # Over the old socket, which ZMQ connected again by itself, nobody has said HELLO.
        first.wire.socket.send(commit)
        if first.wire.socket.poll(2000):
            error = frames.unpack_reply(first.wire.socket.recv()).error
            assert error is not None
            assert error.code == ErrorCode.UNAUTHENTICATED
        assert engine.lookup(keys).ready == 0
        first.close()


def clear_all(engine: Engine, keys: list[bytes]) -> None:
    engine.wire.call(Clear(), ChunkCountReply)


def clear_one(engine: Engine, keys: list[bytes]) -> None:
    engine.wire.call(Clear(fingerprint=fingerprint(engine.namespace)), ChunkCountReply)


def delete(engine: Engine, keys: list[bytes]) -> None:
    body = Delete(fingerprint=fingerprint(engine.namespace), keys=keys[0])
    engine.wire.call(body, ChunkCountReply)


@pytest.mark.parametrize("remove", [clear_all, clear_one, delete])
def test_p10_a_late_commit_brings_nothing_back(
    own_server: ServerProcess, remove: Callable[[Engine, list[bytes]], None]
) -> None:
    with engaged(own_server, make_namespace(model=f"p10/{remove.__name__}")) as engine:
        fill(engine, 1)
        keys = make_keys(2, 8)
        assert engine.save(keys[:4], [0, 1, 2, 3]) == 4
        found = engine.lookup(keys[:4], 1)
        slots = retrieve(engine, found.lease, 4)
        unretrieved = engine.lookup(keys[:4], 2)
        store, reply = engine.store(keys, list(range(8)))
        assert (reply.held, reply.copied) == (4, 4)
        remove(engine, keys)
        commit = engine.wire.call(Commit(session=engine.session, store=store, count=4), CommitReply)
        assert commit.published == 0
        assert commit.stop in (StopReason.CLEARED, StopReason.MISSING_PARENT)
        assert engine.lookup(keys, 3).ready == 0
        with pytest.raises(ReplyError) as caught:
            retrieve(engine, unretrieved.lease, 4)
        assert caught.value.code == ErrorCode.CLEARED
        # A reader that had retrieved keeps its bytes until it gives them back.
        for seed in range(40):
            fill(engine, 100 + seed)
            engine.save(make_keys(100 + seed, 64), list(range(64)))
            engine.pump()
        fill(engine, 1)
        assert (read_slots(engine, slots) == engine.pages[:4]).all()
        assert engine.release(found.lease) == 4
        assert engine.save(keys, list(range(8))) == 8
        assert (read_all(engine, keys) == engine.pages[:8]).all()


def test_p10_a_deadline_in_the_past_has_no_effect(
    server: ServerProcess, bystander: Bystander
) -> None:
    with engaged(server, make_namespace(model="p10/deadline")) as engine:
        keys = make_keys(3, 2)
        store, reply = engine.store(keys, [0, 1])
        assert reply.copied == 2
        body = {"session": engine.session, "store": store, "count": 2}
        engine.wire.socket.send(plain_frame(engine.wire, 21, body, deadline_ns=1))
        assert engine.wire.socket.poll(15_000)
        error = frames.unpack_reply(engine.wire.socket.recv()).error
        assert error is not None
        assert error.code == ErrorCode.DEADLINE_EXCEEDED
        assert engine.lookup(keys).ready == 0
        assert engine.commit(store, 2).published == 2
    bystander.check()


def test_p10_who_reads_no_reply_is_forgotten_and_may_come_again(
    server: ServerProcess, bystander: Bystander
) -> None:
    """Replies are held up to a bound; then the connection is dropped, and nothing else of it."""
    with engaged(server, make_namespace(model="p10/deaf")) as engine:
        keys = make_keys(4, 2)
        assert engine.save(keys, [0, 1]) == 2
        lease = engine.lookup(keys, 1).lease
        dropped = stats(engine).get("complaint_peer_dropped", 0)
        session = ClientSession(InstanceId(engine.instance), "deaf")
        _, hello = session.hello(Token(engine.welcome.token))
        ask = rawzmtp.frame(plain_frame(engine.wire, Stats.op, {}))
        with rawzmtp.greeted(server.url) as deaf:
            deaf.sendall(rawzmtp.frame(hello))
            deaf.settimeout(0.2)
            num_sent, stop_s = 0, time.monotonic() + 20
            while stats(engine).get("complaint_peer_dropped", 0) == dropped:
                assert time.monotonic() < stop_s, f"{num_sent} replies are kept"
                deaf.sendall(ask * 50)
                num_sent += 50
        # A reply is a few kilobytes; beside the bound, the socket itself takes some.
        assert num_sent < 2000
        assert len(retrieve(engine, lease, 2)) == 2
        assert engine.release(lease) == 2
        again = WireClient(server.url, engine.instance)
        again.hello(engine.welcome.token)
        again.close()
    bystander.check()

"""Calls of ``protocol`` that no message leads to: what only this side says, and never reads.

A client's half of a connection, encoders of what cannot be sent, namespaces asked about shards they
do not have. They are called here once each so that the count of branches is about messages only.
Runs in the fuzzer's process.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from protocol import codec, endpoint, errors, extents, figures, frames, keys, layout, side
from protocol import messages as m
from protocol.errors import ErrorCode, KvkeepError
from protocol.ids import ArenaId, Epoch, ExtentId, Fingerprint, InstanceId, Token
from protocol.namespace import Namespace
from protocol.session import ClientSession, ServerSession
from tests.fuzz.finding import Finding, require
from tests.server.core.spaces import SPACES

INSTANCE = InstanceId(b"i" * 16)


def stray_calls() -> None:
    """All of them.

    Raises:
        Finding: one is not answered as it must be.
    """
    _client_half()
    _server_half()
    _refused_values()
    _shapes()
    _places()
    _figures()


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except KvkeepError:
        return
    raise Finding("let through what cannot be: a stray call")


def _client_half() -> None:
    client = ClientSession(INSTANCE)
    _refused(lambda: client.request(m.Ping(), 0, 1))
    seq, _ = client.hello(Token(b"t" * 16))
    reply = m.HelloReply(
        epoch=b"e" * 16,
        arena=b"a" * 16,
        now_ns=5,
        major=1,
        minor=0,
        max_blocks=1,
        max_frame_bytes=1,
        heartbeat_s=1.0,
    )
    client.receive(frames.pack_reply(1, seq, reply), 1)
    seq, _ = client.request(m.Ping(), 1, 1)
    answer = client.receive(frames.pack_reply(6, seq, m.Done()), 1)
    require(answer is not None and answer.body == m.Done(), "an answer: not its own")
    seq, _ = client.request(m.Ping(), 1, 1)
    require(client.num_awaited == 1, "a client's half: one is awaited")
    _refused(lambda: client.receive(frames.pack_reply(30, seq, m.StatsReply(values={})), 1))
    require(client.receive(frames.pack_reply(6, seq, m.Done()), 1) is None, "a late reply: kept")
    seq, _ = client.request(m.Ping(), 1, 1)
    client.forget(seq)


def _server_half() -> None:
    """What the core looks at before it asks this half."""
    server = ServerSession(Epoch(b"e" * 16), ArenaId(b"a" * 16))
    hello = m.Hello(token=b"t", instance=INSTANCE, major=1, minor=0)
    _refused(lambda: server.accept(hello))
    hello = msgspec.structs.replace(hello, token=b"t" * 16)
    require(server.accept(hello) == 0 and server.num_open == 0, "a greeting: not accepted")
    _refused(lambda: server.accept(msgspec.structs.replace(hello, instance=b"j" * 16)))
    packet = side.PoolAccepted(pool=b"p" * 16)
    require(side.unpack_from_server(side.pack(packet)) == packet, "a packet: changed")
    require(m.as_plain(m.Done()) == {}, "a body: not plain")


def _figures() -> None:
    for name, is_known in (
        ("chunks", True),
        ("tier_t_up", True),
        ("tier_t_x", False),
        ("x", False),
    ):
        require((figures.find(name) is not None) is is_known, f"a figure: {name}")
    require(figures.find("error_busy") is not None, "a figure of a family: none")


def _refused_values() -> None:
    _refused(lambda: codec.bytes_from_struct("\ud800"))
    _refused(lambda: codec.bytes_from_struct(1 << 70))
    _refused(lambda: layout.pack_pages([1 << 40]))
    _refused(lambda: keys.pack_tokens([1 << 40]))
    _refused(lambda: keys.ReuseScope(cache_salt=1.5))  # type: ignore[arg-type]
    _refused(lambda: keys.ReuseScope(lora_local_id=1))
    _refused(lambda: keys.BlockHashChain.start(keys.ReuseScope(), 0))
    require(errors.code_of(12345) is ErrorCode.INTERNAL, "a code of tomorrow: not INTERNAL")
    error = errors.RequestError(ErrorCode.BUSY, "x" * 9999, huge=1 << 70, text="\ud800")
    require(frames.unpack_reply(frames.pack_error(1, 1, error)).error is not None, "an error: lost")
    require("BUSY" in str(error) and error.retryable, "an error: without its name")


def _shapes() -> None:
    for space in SPACES:
        for shard in (-1, space.num_shards):
            _refused(lambda space=space, shard=shard: space.group_of(shard))  # type: ignore[misc]
        for group, rank in ((-1, 0), (len(space.groups), 0), (0, space.num_ranks)):
            _refused(lambda s=space, g=group, r=rank: s.shard(g, r))  # type: ignore[misc]
        require(space.num_readers == space.num_ranks, "readers: not one per rank")
    plain = codec.plain_from_bytes(codec.bytes_from_struct(SPACES[0]))
    many = {**plain, "num_ranks": 256, "groups": plain["groups"] * 5}
    _refused(lambda: codec.struct_from_plain(many, Namespace))
    blob = bytes(range(64))
    require(keys.chunk_key_blob(blob, 1) == blob, "chunk keys: of one block")
    require(keys.chunk_key_blob(blob, 2) == blob[16:32] + blob[48:], "chunk keys: of two blocks")
    scope = keys.ReuseScope(
        cache_salt=3, lora_digest=b"d", lora_local_id=1, instance=InstanceId(b"i" * 16)
    )
    require(len(scope.tenant()) == 16 and not keys.ReuseScope().tenant(), "a tenant: of no salt")
    chain = keys.BlockHashChain.start(scope, 2)
    chain.extend(np.arange(6, dtype="<i4").tolist())
    other = keys.BlockHashChain.start(scope, 2)
    other.extend(np.arange(6, dtype="<i4"))  # type: ignore[arg-type]
    require(chain.key_blob(0, 3) == other.key_blob(0, 3), "keys: of an array differ")
    require(chain.key(1) == chain.key_blob(1, 2), "keys: one of a blob")
    geometry = extents.cut(ExtentId(1), Fingerprint(bytes(16)), 0, 1, 4096, 1 << 18)
    row = np.frombuffer(extents.pack_header(geometry, ArenaId(bytes(16))), extents.HEADER_DTYPE)
    row = row.copy()
    row["record_bytes"] = 64
    row["checksum"] = extents.checksums(row)
    _refused(lambda: extents.unpack_header(row.tobytes()))
    require(geometry.slot_offset_bytes(1) - geometry.slot_offset_bytes(0) == 4096, "slots: apart")
    require(geometry.generation_offset_bytes(0) == 4096 + 56, "a generation: elsewhere")
    for file_bytes in range(4096, 1 << 17, 1000):
        geometry = extents.cut(ExtentId(1), Fingerprint(bytes(16)), 0, 1, 128, file_bytes)
        require(geometry.num_slots == 1 or geometry.file_bytes <= file_bytes, "a cut: too long")


def _places() -> None:
    for usable in (("/x",), ("/run/kvkeep",), ()):
        url = endpoint.default_url({"XDG_RUNTIME_DIR": "/x"}, 7, lambda path, u=usable: path in u)  # type: ignore[misc]
        found = endpoint.parse(url)
        require(found.base_path("/x") == found.path, "a default: not its own path")
    require(endpoint.parse("tcp://localhost:7").base_path("/x") == "/x/tcp-7", "a path: of tcp")
    for wrong in ("ipc:///\ud800", "tcp://10.0.0.1:7", "ipc://" + "/x" * 100, "inproc://x"):
        _refused(lambda url=wrong: endpoint.parse(url))  # type: ignore[misc]

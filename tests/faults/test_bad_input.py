"""Bad input: each has a clear typed answer that names what is wrong, loses nothing, harms nobody.

Versions, unknown operations and URLs are in ``test_b46_…``, garbage in ``test_b47_…``, page ids and
pool bounds in ``test_b48_…``, unsealed and shortened pools also in ``test_p13_…``. A bystander's
bytes are checked after each.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import MemfdMemory, pack_pages
from protocol.messages import (
    ChunkCountReply,
    Clear,
    Commit,
    CommitReply,
    Delete,
    Inspect,
    Pin,
    RegisterKvCacheReply,
    Request,
    Retrieve,
    RetrieveReply,
    Store,
    StoreReply,
    Unpin,
)
from protocol.namespace import fingerprint
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import Args, CacheConfig, ConnectorSettings, tokens
from tests.faults.bystander import Bystander, engaged, error_of, read_all, stats
from tests.faults.test_p02_late_wakers_write_nothing import registration
from tests.wire.client import Engine, make_keys, make_namespace, make_pool
from tests.wire.process import ROOT, ServerProcess

NOBODY = b"\x99" * 16


def refusal(engine: Engine, body: Request) -> ReplyError:
    """The error a request is answered with."""
    reply = engine.wire.reply(engine.wire.submit(body))
    assert reply.error is not None, reply.body
    return reply.error


def store(engine: Engine, number: int, keys: list[bytes], pages: bytes, **more: object) -> Store:
    fields: dict[str, object] = {"shard": 0, "start": 0, "parent": b"", "request": 1}
    fields.update(more)
    return Store(
        session=engine.session,
        store=number,
        keys=b"".join(keys),
        pages=pages,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "body",
    [
        Clear(fingerprint=NOBODY),
        Delete(fingerprint=NOBODY, keys=b"k" * 16),
        Inspect(fingerprint=NOBODY, keys=b"k" * 16),
        Pin(fingerprint=NOBODY, keys=b"k" * 16, ttl_s=60),
        Unpin(fingerprint=NOBODY, keys=b"k" * 16),
    ],
    ids=lambda body: type(body).__name__,
)
def test_an_unknown_namespace(server: ServerProcess, bystander: Bystander, body: Request) -> None:
    error = refusal(bystander.engine, body)
    assert error.code == ErrorCode.UNKNOWN_NAMESPACE
    assert NOBODY.hex() in error.message
    assert not error.retryable
    bystander.check()


def test_a_known_namespace_is_told_from_an_unknown_one(bystander: Bystander) -> None:
    engine = bystander.engine
    body = Inspect(fingerprint=fingerprint(engine.namespace), keys=b"k" * 16)
    assert engine.wire.call(body, ChunkCountReply).chunks == 0
    bystander.check()


@pytest.mark.parametrize("num_pages", [0, 3, 5, 8])
def test_page_count_and_hash_count_differ(
    server: ServerProcess, bystander: Bystander, num_pages: int
) -> None:
    keys = make_keys(1, 4)
    with engaged(server, make_namespace(model=f"bad/count {num_pages}")) as engine:
        if num_pages == 0:
            body = {**msgspec.structs.asdict(store(engine, 1, keys, b"\0" * 4)), "pages": b""}
            error = error_of(engine.wire, int(Store.op), body)
            assert error.code == ErrorCode.MALFORMED
            assert "pages" in error.message
        else:
            error = refusal(engine, store(engine, 1, keys, pack_pages(list(range(num_pages)))))
            assert error.code == ErrorCode.COUNT_MISMATCH
            assert error.detail == {"chunks": 4, "pages": num_pages}
            assert "need 4 pages" in error.message
        assert engine.lookup(keys).ready == 0
        assert engine.save(keys, [0, 1, 2, 3]) == 4
    bystander.check()


@pytest.mark.parametrize("blob", [b"\0" * 5, b"\0" * 15])
def test_ragged_blobs(server: ServerProcess, bystander: Bystander, blob: bytes) -> None:
    keys = make_keys(2, 1)
    with engaged(server, make_namespace(model=f"bad/ragged {len(blob)}")) as engine:
        error = refusal(engine, store(engine, 1, keys, blob))
        assert error.code == ErrorCode.COUNT_MISMATCH
        assert str(len(blob)) in error.message
        error = refusal(engine, store(engine, 1, [keys[0] + b"?"], b"\0" * 4))
        assert error.code == ErrorCode.COUNT_MISMATCH
        assert "16-byte" in error.message
        assert engine.save(keys, [0]) == 1
    bystander.check()


def test_a_chain_of_chunks_needs_all_its_pages(server: ServerProcess, bystander: Bystander) -> None:
    namespace = make_namespace(model="bad/chunks", chunk_blocks=4)
    with engaged(server, namespace) as engine:
        keys = make_keys(3, 2)
        for num_pages in (2, 7, 9):
            error = refusal(engine, store(engine, 1, keys, pack_pages(list(range(num_pages)))))
            assert error.code == ErrorCode.COUNT_MISMATCH
            assert "need 8 pages" in error.message
        reply = engine.wire.call(store(engine, 2, keys, pack_pages(list(range(8)))), StoreReply)
        assert reply.copied == 2
        committed = engine.wire.call(Commit(session=engine.session, store=2, count=2), CommitReply)
        assert committed.published == 2
        assert engine.lookup(keys).ready == 2
    bystander.check()


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ({"shard": 1}, ErrorCode.INVALID_ARGUMENT, "shard 1"),
        ({"shard": 1023}, ErrorCode.INVALID_ARGUMENT, "shard 1023"),
        ({"start": 1}, ErrorCode.INVALID_ARGUMENT, "parent"),
        ({"parent": b"p" * 16}, ErrorCode.INVALID_ARGUMENT, "parent"),
        ({"start": 2**32 - 1, "parent": b"p" * 16}, ErrorCode.INVALID_ARGUMENT, "chain"),
        ({"session": 10**9}, ErrorCode.UNKNOWN_SESSION, "no session 1000000000"),
    ],
)
def test_stores_that_name_what_is_not_there(
    server: ServerProcess,
    bystander: Bystander,
    more: dict[str, object],
    code: ErrorCode,
    word: str,
) -> None:
    with engaged(server, make_namespace(model=f"bad/{word}")) as engine:
        keys = make_keys(4, 2)
        body = msgspec.structs.replace(store(engine, 1, keys, bytes(8)), **more)
        error = refusal(engine, body)
        assert error.code == code
        assert word in error.message
        assert engine.save(keys, [0, 1]) == 2
    bystander.check()


def test_commits_and_retrieves_beyond_what_there_is(
    server: ServerProcess, bystander: Bystander
) -> None:
    with engaged(server, make_namespace(model="bad/beyond")) as engine:
        keys = make_keys(5, 4)
        number, reply = engine.store(keys, [0, 1, 2, 3])
        assert reply.copied == 4
        error = refusal(engine, Commit(session=engine.session, store=number, count=5))
        assert (error.code, error.detail) == (ErrorCode.INVALID_ARGUMENT, {"copied": 4})
        error = refusal(engine, Commit(session=engine.session, store=number + 1, count=1))
        assert error.code == ErrorCode.UNKNOWN_STORE
        assert engine.commit(number, 4).published == 4
        error = refusal(engine, Commit(session=engine.session, store=number, count=4))
        assert error.code == ErrorCode.UNKNOWN_STORE
        found = engine.lookup(keys)
        for start, count in ((0, 5), (4, 1), (3, 2)):
            body = Retrieve(session=engine.session, lease=found.lease, start=start, count=count)
            error = refusal(engine, body)
            assert error.code == ErrorCode.INVALID_ARGUMENT
            assert "0 to 3" in error.message
        error = refusal(engine, Retrieve(session=engine.session, lease=NOBODY, start=0, count=1))
        assert error.code == ErrorCode.UNKNOWN_LEASE
        body = Retrieve(session=engine.session, lease=found.lease, start=0, count=4)
        engine.wire.call(body, RetrieveReply)
        assert engine.release(found.lease) == 4
    bystander.check()


@pytest.mark.parametrize("stated", ["longer", "shorter", "other id", "never offered"])
def test_a_pool_that_is_not_what_was_said(
    server: ServerProcess, bystander: Bystander, stated: str
) -> None:
    with engaged(server, make_namespace(model=f"bad/{stated}"), register=False) as engine:
        size, pool = 64 * engine.page_bytes, os.urandom(16)
        if stated in ("longer", "shorter"):
            said = size + 4096 if stated == "longer" else size - 4096
            answer = engine.side.offer(pool, engine.pool_fd, said)
            assert isinstance(answer, side.SideError)
            assert answer.code == ErrorCode.POOL_INVALID
            assert answer.pool == pool
            assert str(size) in answer.message
            assert str(said) in answer.message
        if stated == "other id":
            assert isinstance(engine.side.offer(pool, engine.pool_fd, size), side.PoolAccepted)
            pool = NOBODY
        error = refusal(engine, registration(engine, pool))
        assert error.code == ErrorCode.POOL_INVALID
        assert "side socket" in error.message
        engine.register()
        engine.pump_while_waiting()
        assert engine.save(make_keys(6, 2), [0, 1]) == 2
    bystander.check()


def test_a_pool_stated_differently_in_register(server: ServerProcess, bystander: Bystander) -> None:
    with engaged(server, make_namespace(model="bad/stated"), register=False) as engine:
        size, pool = 64 * engine.page_bytes, os.urandom(16)
        assert isinstance(engine.side.offer(pool, engine.pool_fd, size), side.PoolAccepted)
        for stated in (size - 1, size + 1, 1):
            memory = MemfdMemory(pool=pool, size_bytes=stated)
            body = msgspec.structs.replace(registration(engine, pool), memory=memory)
            error = refusal(engine, body)
            assert error.code == ErrorCode.POOL_INVALID
            assert error.detail == {"pool_bytes": size, "stated_bytes": stated}
        # The truth is still taken afterwards: the offer stands.
        reply = engine.wire.call(registration(engine, pool), RegisterKvCacheReply)
        engine.session = reply.session
    bystander.check()


def test_an_unsealed_pool_names_the_seals(server: ServerProcess, bystander: Bystander) -> None:
    with engaged(server, make_namespace(model="bad/unsealed"), register=False) as engine:
        fd, _ = make_pool(1 << 20, 0)
        answer = engine.side.offer(b"u" * 16, fd, 1 << 20)
        os.close(fd)
        assert isinstance(answer, side.SideError)
        assert answer.code == ErrorCode.POOL_INVALID
        assert "SHRINK" in answer.message.upper()
        assert "GROW" in answer.message.upper()
        engine.register()
    bystander.check()


@pytest.mark.parametrize("rank", [1, 255])
def test_ranks_outside_the_namespace(
    server: ServerProcess, bystander: Bystander, rank: int
) -> None:
    with engaged(server, make_namespace(model="bad/rank"), register=False) as engine:
        pool = os.urandom(16)
        size = 64 * engine.page_bytes
        assert isinstance(engine.side.offer(pool, engine.pool_fd, size), side.PoolAccepted)
        body = msgspec.structs.replace(registration(engine, pool), rank=rank)
        error = refusal(engine, body)
        assert error.code == ErrorCode.INVALID_ARGUMENT
        assert f"rank {rank} is not within 0..0" in error.message
    bystander.check()


@pytest.mark.parametrize(
    ("chunk_tokens", "valid"),
    [(6, "4, 8, 12"), (1, "4, 8, 12"), (4 * 257, "up to 1024"), (4098, "up to 1024")],
)
def test_a_chunk_size_that_is_no_multiple_of_the_block_size(
    server: ServerProcess,
    bystander: Bystander,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunk_tokens: int,
    valid: str,
) -> None:
    from protocol.errors import ConfigError

    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", str(chunk_tokens))
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    with pytest.raises(ConfigError) as caught:
        rig.worker.register_kv_caches(rig.tensor)
    assert caught.value.code == ErrorCode.CHUNK_SIZE_INVALID
    assert str(chunk_tokens) in caught.value.message
    assert valid in caught.value.message
    rig.close()
    bystander.check()


@pytest.mark.parametrize("text", ["0", "-4", "many", "4.5", str(1 << 30)])
def test_a_chunk_size_that_is_no_size(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from adapter.scheduler import KvkeepConnectorScheduler
    from protocol.errors import ConfigError

    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", text)
    with pytest.raises(ConfigError) as caught:
        KvkeepConnectorScheduler(Args(kv_connector_config=ConnectorSettings("ipc:///x/y")))
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert "TRTLLM_KVKEEP_CHUNK_TOKENS" in caught.value.message
    assert "1..16777216" in caught.value.message


def test_a_block_size_that_the_host_does_not_keep_is_noticed(
    server: ServerProcess, bystander: Bystander, tmp_path: Path
) -> None:
    """The setting says 8 tokens a block, the pool's pages hold 4: no KV of other sizes is mixed."""
    args = replace(Args(), kv_cache_config=CacheConfig(tokens_per_block=8))
    rig = EngineRig(server.url, write_model(tmp_path / "m"), args=args).register()
    prompt = tokens(22, seed=3)
    rig.run_saved(prompt)
    assert rig.run_saved(prompt).offered == 20  # read off the pool
    rig.close()
    bystander.check()


def launch(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "server", "launch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def one_line(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def test_an_endpoint_in_use_while_engines_work(
    server: ServerProcess, bystander: Bystander, short_dir: Path
) -> None:
    err = one_line(launch("--endpoint", server.url, "--l1-size", "16M"))
    assert "ENDPOINT_IN_USE" in err
    assert server.url in err
    bystander.check()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        err = one_line(
            launch(
                *("--endpoint", f"tcp://127.0.0.1:{port}", "--l1-size", "16M"),
                *("--arena-dir", f"/dev/shm/{short_dir.name}"),
            )
        )
    assert "ENDPOINT_IN_USE" in err
    assert str(port) in err
    assert not Path(f"/dev/shm/{short_dir.name}").exists()
    bystander.check()


def test_an_arena_larger_than_memory(bystander: Bystander, short_dir: Path) -> None:
    err = one_line(launch("--endpoint", f"ipc://{short_dir}/s", "--l1-size", "9T"))
    assert "INVALID_CONFIG" in err
    assert "l1-size" in err
    assert "9 TiB" in err
    assert "leaves" in err
    assert list(short_dir.iterdir()) == []
    bystander.check()


@pytest.mark.parametrize("url", ["", "ipc://relative", "tcp://0.0.0.0:5555", "udp://x", "kvkeep"])
def test_an_invalid_url_at_launch(bystander: Bystander, url: str) -> None:
    err = one_line(launch("--endpoint", url, "--l1-size", "16M"))
    assert "INVALID_URL" in err
    assert "ipc:///absolute/path" in err
    bystander.check()


def test_what_was_refused_is_counted_and_nothing_is_left(bystander: Bystander) -> None:
    """After all of it this server holds what its engines saved, and no reservation or lease."""
    bystander.check()
    now = stats(bystander.engine)
    for name in ("leases", "stores", "slots_reserved", "copies_in_flight", "pinned_slots"):
        assert now[name] == 0, name
    assert now.get("internal_errors", 0) == 0
    assert now["error_unknown_namespace"] >= 5
    assert len(read_all(bystander.engine, make_keys_of(bystander))) > 0


def make_keys_of(bystander: Bystander) -> list[bytes]:
    """One more chain of the bystander's."""
    keys = make_keys(77, 3)
    assert bystander.engine.save(keys, [1, 2, 3]) == 3
    return keys

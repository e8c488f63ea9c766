"""The server's job over the wire, every byte checked: save, look up, load; and its accidents."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ErrorCode, ReplyError
from protocol.layout import pack_pages
from protocol.messages import (
    Done,
    Ping,
    Stats,
    StatsReply,
    StopReason,
    Store,
    StoreReply,
    Unregister,
)
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, is_alive, wait_until


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    sizes = ("--l1-size", "64M", "--extent-size", "4M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as process:
        yield process


@pytest.fixture
def engine(server: ServerProcess) -> Iterator[Engine]:
    with Engine(server.url, server.side_path) as made:
        made.register()
        fill(made, 1)
        yield made


def fill(engine: Engine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine.pages[:] = rng.integers(0, 256, engine.pages.shape, dtype=np.uint8)


def load(engine: Engine, keys: list[bytes], request: int = 1) -> NDArray[np.uint8]:
    found = engine.lookup(keys, request)
    if not found.ready:
        return np.empty((0, engine.page_bytes), dtype=np.uint8)
    engine.pump()
    data = engine.read(found.lease, found.ready)
    assert engine.release(found.lease) == found.ready
    return data


def stats(engine: Engine) -> dict[str, int]:
    return engine.wire.call(Stats(), StatsReply).values


def test_what_one_engine_saved_another_loads_byte_for_byte(
    server: ServerProcess, engine: Engine
) -> None:
    keys = make_keys(1, 40)
    pages = [int(page) for page in np.random.default_rng(2).permutation(engine.num_pages)[:40]]
    assert engine.save(keys, pages) == 40
    with Engine(server.url, server.side_path, engine.namespace) as other:
        other.register()
        data = load(other, keys)
        assert np.array_equal(data, engine.pages[pages])
        assert np.array_equal(load(other, [*keys, *make_keys(9, 3)]), data)
        assert len(load(other, make_keys(9, 3))) == 0
        assert np.array_equal(load(other, keys[:7]), data[:7])


def test_a_staging_ring_is_stored_from_like_a_pool(server: ServerProcess, engine: Engine) -> None:
    with Engine(server.url, server.side_path, engine.namespace, num_pages=8, ring=True) as other:
        other.register()
        keys = make_keys(5, 24)
        expected = []
        for first in range(0, 24, 8):  # the same eight places again and again
            fill(other, first)
            expected.append(other.pages.copy())
            store, reply = other.store(keys[: first + 8], list(range(8)), start=first)
            assert reply.copied == 8
            fill(other, 1000 + first)  # answered: the places may be written again
            assert other.commit(store, 8).published == 8
        assert np.array_equal(load(engine, keys), np.concatenate(expected))


def test_only_commit_publishes(engine: Engine) -> None:
    keys = make_keys(1, 8)
    store, reply = engine.store(keys, list(range(8)))
    assert (reply.held, reply.copied, reply.stop) == (0, 8, StopReason.NONE)
    assert engine.lookup(keys).ready == 0
    assert engine.commit(store, 5).published == 5
    assert np.array_equal(load(engine, keys), engine.pages[:5])
    assert engine.save(keys, list(range(8))) == 8
    assert np.array_equal(load(engine, keys), engine.pages[:8])


def test_the_copy_is_of_the_moment_not_of_later(engine: Engine) -> None:
    keys = make_keys(1, 16)
    before = engine.pages[:16].copy()
    assert engine.save(keys, list(range(16))) == 16
    engine.pages[:] = 0
    assert np.array_equal(load(engine, keys), before)


def test_models_do_not_see_each_other(server: ServerProcess, engine: Engine) -> None:
    keys = make_keys(1, 8)
    engine.save(keys, list(range(8)))
    other_model = make_namespace(page_bytes=24_576, model="another/model")
    with Engine(server.url, server.side_path, other_model) as other:
        other.register()
        fill(other, 5)
        assert len(load(other, keys)) == 0
        assert other.save(keys, list(range(8))) == 8
        assert np.array_equal(load(other, keys), other.pages[:8])
    assert np.array_equal(load(engine, keys), engine.pages[:8])


def test_what_an_engine_stored_outlives_it(server: ServerProcess) -> None:
    keys = make_keys(1, 12)
    pid = os.fork()
    if pid == 0:  # an engine that is killed after its COMMIT
        code = 1
        try:
            first = Engine(server.url, server.side_path)
            first.register()
            fill(first, 3)
            code = 0 if first.save(keys, list(range(12))) == 12 else 2
        finally:
            os.kill(os.getpid(), signal.SIGKILL if code == 0 else signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with Engine(server.url, server.side_path) as second:
        second.register()
        assert wait_until(lambda: stats(second)["processes"] == 1)
        expected = np.random.default_rng(3).integers(
            0, 256, (second.num_pages, second.page_bytes), dtype=np.uint8
        )
        assert np.array_equal(load(second, keys), expected[:12])


def test_a_loaded_mapping_outlives_the_server(server: ServerProcess, engine: Engine) -> None:
    keys = make_keys(1, 12)
    engine.save(keys, list(range(12)))
    found = engine.lookup(keys)
    engine.pump()
    data = engine.read(found.lease, found.ready)
    server.kill()
    for extent in engine.extents.values():
        assert extent.view[:8].tobytes() == b"KVKEEPEX"
    assert np.array_equal(data, engine.pages[:12])


def test_more_than_the_arena_holds_is_evicted_and_never_wrong(
    server: ServerProcess, engine: Engine
) -> None:
    num_rounds = 120  # of 64 pages of 16 KiB: twice the arena
    expected: dict[int, NDArray[np.uint8]] = {}
    for seed in range(num_rounds):
        fill(engine, seed)
        expected[seed] = engine.pages.copy()
        engine.save(make_keys(seed, 64), list(range(64)))
        engine.pump()
    num_loaded = 0
    for seed in range(num_rounds):
        data = load(engine, make_keys(seed, 64), seed)
        assert np.array_equal(data, expected[seed][: len(data)])
        num_loaded += len(data)
    assert num_loaded * engine.page_bytes >= 48 << 20
    assert len(load(engine, make_keys(num_rounds - 1, 64))) == 64
    used = sum(path.stat().st_size for path in server.arena_dir.glob("*.extent"))
    assert used <= 64 << 20


class Model(threading.Thread):
    """An engine that saves and at once loads again, round after round."""

    def __init__(self, server: ServerProcess, name: str, page_bytes: int, rounds: int) -> None:
        super().__init__()
        self.server = server
        self.namespace = make_namespace(page_bytes=page_bytes, model=name)
        self.base = page_bytes
        self.rounds = rounds
        self.num_full = 0
        self.num_wrong = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Engine(self.server.url, self.server.side_path, self.namespace) as engine:
                engine.register()
                engine.pump_while_waiting()
                for seed in range(self.rounds):
                    self._round(engine, seed)
        except BaseException as error:
            self.error = error
            raise

    def _round(self, engine: Engine, seed: int) -> None:
        fill(engine, self.base + seed)
        keys = make_keys(self.base + seed, engine.num_pages)
        saves(engine, keys)
        data = load(engine, keys, seed)
        self.num_full += len(data) == engine.num_pages
        self.num_wrong += not np.array_equal(data, engine.pages[: len(data)])


def test_p17_two_models_in_an_arena_too_small_for_both_share_it(
    short_dir: Path, shm_dir: Path
) -> None:
    sizes = ("--l1-size", "16M", "--extent-size", "2M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as server:
        # Rounds of 1 MiB and 1.5 MiB: either model alone would fill the arena several times.
        models = [
            Model(server, "one", 16_384, 60),
            Model(server, "two", 24_576, 60),
        ]
        for model in models:
            model.start()
        for model in models:
            model.join(100)
            assert not model.is_alive()
        assert [model.error for model in models] == [None, None]
        assert [model.num_wrong for model in models] == [0, 0]
        # Neither starves: what was saved last is there in nearly each round.
        assert all(model.num_full >= 50 for model in models), [m.num_full for m in models]
        used = sum(path.stat().st_blocks * 512 for path in server.arena_dir.glob("*.extent"))
        assert used <= 16 << 20
        assert "Traceback" not in server.log()


def test_a_copier_killed_amid_stores_is_replaced_and_nothing_wrong_is_held(
    server: ServerProcess, engine: Engine
) -> None:
    assert engine.save(make_keys(0, 64), list(range(64))) == 64
    [copier] = server.children()
    os.kill(copier, signal.SIGSTOP)
    with Engine(server.url, server.side_path, num_pages=64) as other:
        os.kill(copier, signal.SIGKILL)
        assert wait_until(lambda: server.children() not in ([], [copier]))
        other.register()
        fill(other, 8)
        # Retried until the new copier has its mappings: a failed copy is an answer, not a fault.
        assert wait_until(lambda: saves(other, make_keys(8, 64)), 15, 0.05)
        other.pump()
        assert np.array_equal(load(other, make_keys(8, 64)), other.pages)
    engine.pump()
    assert np.array_equal(load(engine, make_keys(0, 64)), engine.pages)
    assert wait_until(lambda: saves(engine, make_keys(2, 64)), 15, 0.05)
    assert not is_alive(copier)
    assert "Traceback" not in server.log()


def test_a_store_in_a_dead_copiers_queue_is_answered(server: ServerProcess, engine: Engine) -> None:
    for round_number in range(3):
        [copier] = server.children()
        os.kill(copier, signal.SIGSTOP)
        keys = make_keys(50 + round_number, 64)
        seq = engine.wire.submit(
            Store(
                session=engine.session,
                store=1000 + round_number,
                request=1,
                shard=0,
                start=0,
                parent=b"",
                keys=b"".join(keys),
                pages=pack_pages(list(range(64))),
            )
        )
        engine.wire.call(Ping(), Done)  # the STORE was taken in before this was answered
        os.kill(copier, signal.SIGKILL)
        reply = engine.wire.reply(seq)
        if reply.error is not None:
            assert reply.error.code in (ErrorCode.COPY_FAILED, ErrorCode.UNAVAILABLE)
            assert reply.error.retryable
        else:
            assert isinstance(reply.body, StoreReply)
            assert (reply.body.copied, reply.body.stop) == (0, StopReason.COPY_FAILED)
        assert engine.lookup(keys).ready == 0
        # The next copier gets the pool mapped again without being asked by the engine.
        again = make_keys(60 + round_number, 8)
        assert wait_until(lambda now=again: saves(engine, now), 15, 0.05)
        assert np.array_equal(load(engine, again), engine.pages[:8])


def saves(engine: Engine, keys: list[bytes]) -> bool:
    try:
        return engine.save(keys, list(range(len(keys)))) == len(keys)
    except ReplyError as error:
        if not error.retryable:
            raise
        return False


def test_unregister_gives_the_pool_back(server: ServerProcess, engine: Engine) -> None:
    keys = make_keys(1, 8)
    engine.save(keys, list(range(8)))
    [copier] = server.children()

    def maps_pool() -> bool:
        return "kvkeep-test-pool" in Path(f"/proc/{copier}/maps").read_text(encoding="utf-8")

    assert maps_pool()
    engine.wire.call(Unregister(session=engine.session), Done)
    assert not maps_pool()
    with pytest.raises(ReplyError) as caught:
        engine.lookup(keys)
    assert caught.value.code == ErrorCode.UNKNOWN_SESSION


def test_sigterm_amid_stores_ends_in_time(server: ServerProcess, engine: Engine) -> None:
    for seed in range(5):
        engine.save(make_keys(seed, 64), list(range(64)))
    assert server.terminate() == 0
    assert not server.arena_dir.exists()
    assert "Traceback" not in server.log()

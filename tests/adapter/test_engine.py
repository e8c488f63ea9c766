"""The shared part of an engine: brought up once, uncached with one line, closed in bounded time."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter import embedded, trtllm_api
from adapter.config import ENV_LOAD_MODE
from adapter.engine import Engine, Running, engine_for
from adapter.loadmode import LoadMode
from adapter.metadata import EngineCard
from adapter.pagememory import PageMemory
from adapter.pages import SharedPool
from adapter.poolshape import CacheShape, read_tensor
from adapter.refusals import UncachedError
from adapter.serverurl import ENV_SERVER_URL
from protocol.errors import ConfigError
from protocol.layout import MemfdMemory, RingMemory
from protocol.messages import Op, RegisterKvCache
from tests.adapter.hostlike import Args, CacheConfig
from tests.adapter.responder import Responder, until
from tests.adapter.test_identity import CONFIG, FakeTensor

NUM_PAGES = 16


class Member:
    """Stands for a scheduler or worker."""


@pytest.fixture
def url(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"ipc://{short_dir}/kvkeep.sock"
    monkeypatch.setenv(ENV_SERVER_URL, found)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"w" * 1000)
    return tmp_path


MADE: list[weakref.ReferenceType[Engine]] = []


def make(model: Path, **changes: Any) -> Engine:
    """An engine that is closed with the test whatever happens."""
    made = engine_for(replace(Args(model=str(model)), **changes), "worker", Member())
    MADE.append(weakref.ref(made))
    return made


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    for reference in MADE:
        engine = reference()
        if engine is not None:
            engine.close()
    MADE.clear()


def cache(heads: int = 2) -> tuple[CacheShape, PageMemory]:
    """Blocks of four tokens in a shared pool."""
    shape = (NUM_PAGES, 2, 2, heads * 8 * 4)
    pool = SharedPool.create(int(np.prod(shape)) * 4)
    return read_tensor(FakeTensor(pool.view.view(np.float32).reshape(shape)))


def private_cache() -> tuple[CacheShape, PageMemory]:
    return read_tensor(FakeTensor(np.zeros((NUM_PAGES, 2, 2, 64), np.float32)))


def card_of(engine: Engine) -> EngineCard | None:
    """The card now; through a call, so that type checkers do not assume it unchanged."""
    return engine.card


def running_of(engine: Engine) -> Running | None:
    """The registered engine now; likewise."""
    return engine.running


def asked(server: Responder) -> RegisterKvCache:
    """What was registered last."""
    found = [body for op, body in server.seen if op == Op.REGISTER_KV_CACHE]
    assert isinstance(found[-1], RegisterKvCache)
    return found[-1]


def test_both_sides_get_the_same_one(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvkeep")
    args, members = Args(), (Member(), Member())
    worker = engine_for(args, "worker", members[0])
    assert engine_for(args, "scheduler", members[1]) is worker
    lines = [record.getMessage() for record in caplog.records if url in record.getMessage()]
    assert len(lines) == 1
    assert ENV_SERVER_URL in lines[0]
    assert engine_for(Args(), "scheduler", Member()).instance != worker.instance


def test_a_member_may_say_where_its_server_is_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRTLLM_KVKEEP_SERVER_URL", raising=False)
    member = Member()
    member.default_server_url = "inproc://"  # type: ignore[attr-defined]
    assert engine_for(Args(), "worker", member).settings.server.is_embedded
    assert not engine_for(Args(), "worker", Member()).settings.server.is_embedded


def test_a_misspelt_setting_is_named_once(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_BUDGET", "3")
    args, members = Args(), (Member(), Member())
    worker = engine_for(args, "worker", members[0])
    assert engine_for(args, "scheduler", members[1]) is worker
    text = "kvkeep: TRTLLM_KVKEEP_BUDGET in the environment is no setting of the adapter"
    assert [record.getMessage() for record in caplog.records] == [text]


def test_a_wrong_setting_stops_the_construction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SERVER_URL, "")
    with pytest.raises(ConfigError, match=ENV_SERVER_URL):
        engine_for(Args(), "worker", Member())


@pytest.mark.usefixtures("url")
def test_registers_runs_and_unregisters(short_dir: Path, model: Path) -> None:
    engine = make(model)
    with Responder(short_dir) as server:
        shape, memory = cache()
        engine.register(shape, memory)
        running = engine.running
        assert running is not None
        assert running.memory is memory
        assert (running.geometry.tokens_per_block, running.load_mode) == (4, LoadMode.SYNC)
        assert running.link.wait_joined(10) is not None
        registered = asked(server)
        assert isinstance(registered.memory, MemfdMemory)
        assert (registered.rank, registered.pools[0].num_pages) == (0, NUM_PAGES)
        assert engine.card is None
        closed: list[int] = []
        engine.at_close(lambda: closed.append(1))
        assert engine.close()
        assert closed == [1]
        assert engine.running is None
        assert [op.name for op, _ in server.seen].count("UNREGISTER") == 1
        assert engine.close()
        assert closed == [1]


@pytest.mark.usefixtures("url")
def test_a_second_cache_and_refused_engines(model: Path) -> None:
    engine = make(model)
    engine.register(*cache())
    with pytest.raises(UncachedError, match="second pool"):
        engine.register(*cache())
    engine.close()
    off = make(model, kv_cache_config=CacheConfig(enable_block_reuse=False))
    with pytest.raises(UncachedError, match="enable_block_reuse"):
        off.register(*cache())
    assert off.running is None
    assert off.close()


@pytest.mark.usefixtures("url")
def test_uncached_is_said_once_and_final(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = make(model)
    engine.register(*cache())
    engine.run_uncached("first reason")
    engine.run_uncached("second reason")
    assert caplog.text.count("uncached") == 1
    assert "first reason" in caplog.text
    assert engine.running is None
    assert engine.uncached_because == "first reason"
    engine.close()


@pytest.mark.usefixtures("url")
def test_close_without_a_server_is_bounded(model: Path) -> None:
    engine = make(model)
    engine.register(*cache())
    begin_s = time.monotonic()
    engine.close()
    assert time.monotonic() - begin_s < 5


@pytest.mark.usefixtures("url")
def test_close_before_anything_ran(model: Path) -> None:
    assert make(model).close()


@pytest.mark.usefixtures("url")
def test_an_engine_nobody_uses_any_more_closes_itself(short_dir: Path, model: Path) -> None:
    with Responder(short_dir) as server:
        made = make(model)
        made.register(*cache())
        assert made.running is not None
        made.running.link.wait_joined(10)
        gone = weakref.ref(made)
        del made
        until(lambda: gc.collect() >= 0 and gone() is None)
        until(lambda: "UNREGISTER" in [op.name for op, _ in server.seen])


# --- several ranks ------------------------------------------------------------------------------


def ranks(model: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Engine]:
    """A leader and another rank, as two processes would have them."""
    leader = make(model, tensor_parallel_size=2)
    monkeypatch.setenv(trtllm_api.CONFORMANCE_RANK, "1")
    return leader, make(model, tensor_parallel_size=2)


def test_other_ranks_join_by_the_leaders_card(
    url: str, short_dir: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = ranks(model, monkeypatch)
    assert card_of(leader) is None
    with Responder(short_dir) as server:
        leader.register(*cache(heads=1))
        card = card_of(leader)
        assert card == EngineCard(instance=leader.instance, url=url)
        other.follow(card)
        assert running_of(other) is None  # nothing was registered with it yet
        other.register(*cache(heads=1))
        assert (running_of(other), card_of(other)) == (None, None)
        other.follow(None)
        assert running_of(other) is None
        assert leader.running is not None
        joined = leader.running.link.wait_joined(10)
        assert joined is not None
        begin_s = time.thread_time()
        other.follow(card)
        assert time.thread_time() - begin_s < 0.05
        running = running_of(other)
        assert running is not None
        assert running.link.wait_joined(10) is not None
        registered = asked(server)
        assert (registered.rank, [pool.shard for pool in registered.pools]) == (1, [1])
        assert registered.namespace == joined.namespace
        other.follow(EngineCard(instance=leader.instance, url=url))
        leader.follow(EngineCard(instance=b"x" * 16, url=url))
        assert running_of(other) is running
        assert leader.running is not None
        assert card_of(other) is None
        assert leader.close()
        assert other.close()


@pytest.mark.usefixtures("url")
def test_a_card_that_cannot_be_followed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, other = ranks(model, monkeypatch)
    other.register(*cache(heads=1))
    other.follow(EngineCard(instance=b"x" * 16, url="nowhere"))
    assert "could not be joined" in other.uncached_because
    assert running_of(other) is None


def test_a_leader_that_became_another(
    url: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = ranks(model, monkeypatch)
    other.register(*cache(heads=1))
    other.follow(EngineCard(instance=b"x" * 16, url=url))
    other.follow(EngineCard(instance=b"y" * 16, url=url))
    assert "another instance" in other.uncached_because
    assert running_of(other) is None
    other.close()


@pytest.mark.usefixtures("url")
def test_a_rank_of_attention_dp_leads_itself(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trtllm_api.CONFORMANCE_RANK, "1")
    engine = make(model, tensor_parallel_size=2, enable_attention_dp=True)
    engine.register(*cache())
    assert engine.running is not None
    assert engine.running.geometry.num_ranks == 1
    assert engine.card is None
    engine.close()


# --- load modes and private memory ---------------------------------------------------------------


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    ("epoch", "asked_for", "mode", "num_lines"),
    [
        ("E2", "auto", LoadMode.SYNC, 0),
        ("E4", "auto", LoadMode.ASYNC, 0),
        ("E2", "async", LoadMode.SYNC, 1),
        ("E2", "layerwise", LoadMode.LAYERWISE, 0),
    ],
)
def test_the_load_mode_follows_the_host(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    epoch: str,
    asked_for: str,
    mode: LoadMode,
    num_lines: int,
) -> None:
    monkeypatch.setenv(trtllm_api.CONFORMANCE_EPOCH, epoch)
    monkeypatch.setenv(ENV_LOAD_MODE, asked_for)
    caplog.set_level("INFO", "kvkeep")
    engine = make(model)
    engine.register(*cache())
    assert engine.running is not None
    assert engine.running.load_mode is mode
    assert caplog.text.count("loads are synchronous") == num_lines
    assert caplog.text.count(f"kvkeep: loads: {mode.value} (") == 1
    engine.close()


@pytest.mark.usefixtures("url")
def test_partial_reuse_is_said_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvkeep")
    engine = make(model, kv_cache_config=CacheConfig(enable_partial_reuse=True))
    engine.register(*cache())
    assert caplog.text.count("enable_partial_reuse") == 1
    engine.close()


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("mode", ["auto", "layerwise"])
def test_a_ring_is_registered_for_private_memory_and_for_layers(
    short_dir: Path, model: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv(ENV_LOAD_MODE, mode)
    engine = make(model)
    with Responder(short_dir) as server:
        engine.register(*(cache() if mode == "layerwise" else private_cache()))
        assert engine.running is not None
        assert engine.running.link.wait_joined(10) is not None
        registered = asked(server)
        assert isinstance(registered.memory, RingMemory)
        assert registered.pools[0].num_pages == NUM_PAGES
        assert engine.close()


# --- embedded mode -------------------------------------------------------------------------------


def test_a_wrong_setting_of_a_private_server_stops_the_construction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENV_SERVER_URL, "inproc://")
    monkeypatch.setenv(f"{embedded.SETTINGS_PREFIX}L1_SIZE", "abc")
    with pytest.raises(ConfigError, match=r"TRTLLM_KVKEEP_INPROC_L1_SIZE: l1-size='abc'"):
        engine_for(Args(), "worker", Member())
    monkeypatch.setattr(trtllm_api, "mpi_rank", lambda: 1)  # it starts no server
    assert engine_for(Args(), "worker", Member()).settings.server.is_embedded


def test_embedded_mode_starts_and_ends_a_server(
    model: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_dir))
    monkeypatch.setenv(ENV_SERVER_URL, "inproc://")
    monkeypatch.setenv(f"{embedded.SETTINGS_PREFIX}L1_SIZE", "16M")
    leader, other = ranks(model, monkeypatch)
    begin_s = time.monotonic()
    leader.register(*cache(heads=1))
    other.register(*cache(heads=1))
    other.follow(leader.card)
    assert time.monotonic() - begin_s < 1
    for engine in (leader, other):
        assert engine.running is not None
        assert engine.running.link.wait_joined(30) is not None
    [folder] = os.listdir(short_dir)
    assert folder.startswith("kvkeep-inproc-")
    assert other.close()
    assert leader.close()
    assert os.listdir(short_dir) == []


@pytest.mark.parametrize(("rank", "count"), [("0", 1), ("1", 0)])
def test_of_attention_dp_only_the_first_rank_starts_a_server(
    model: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, rank: str, count: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_dir))
    monkeypatch.setenv(ENV_SERVER_URL, "inproc://")
    monkeypatch.setenv(f"{embedded.SETTINGS_PREFIX}L1_SIZE", "16M")
    monkeypatch.setenv(trtllm_api.CONFORMANCE_RANK, rank)
    engine = make(model, enable_attention_dp=True, tensor_parallel_size=2)
    before = set(threading.enumerate())
    engine.register(*cache())
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert names.count("kvkeep-inproc") == count
    assert running_of(engine) is not None  # each is an engine of its own, and its own leader
    assert engine.close()

"""The shared part of an engine: brought up once, uncached with one line, closed in bounded time."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from pathlib import Path

import pytest

from adapter.engine import Engine, engine_for
from adapter.link import Link
from adapter.serverurl import ENV_SERVER_URL
from protocol.errors import ConfigError
from tests.adapter.hostlike import Args, geometry
from tests.adapter.linking import make_pool, register
from tests.adapter.responder import Responder, until


class Member:
    """Stands for a scheduler or worker."""


@pytest.fixture
def url(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"ipc://{short_dir}/kvkeep.sock"
    monkeypatch.setenv(ENV_SERVER_URL, found)
    return found


@pytest.fixture
def engine(url: str) -> Engine:
    return engine_for(Args(), "worker", Member())


def nothing(link: Link) -> None:
    """Registers nothing."""


def test_both_sides_get_the_same_one(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvkeep")
    args, members = Args(), (Member(), Member())
    worker = engine_for(args, "worker", members[0])
    assert engine_for(args, "scheduler", members[1]) is worker
    lines = [record.getMessage() for record in caplog.records if url in record.getMessage()]
    assert len(lines) == 1
    assert ENV_SERVER_URL in lines[0]
    assert engine_for(Args(), "scheduler", Member()).instance != worker.instance


def test_a_wrong_setting_stops_the_construction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SERVER_URL, "")
    with pytest.raises(ConfigError, match=ENV_SERVER_URL):
        engine_for(Args(), "worker", Member())


def test_registers_runs_and_unregisters(short_dir: Path, engine: Engine) -> None:
    pool = make_pool()
    with Responder(short_dir) as server:
        running = engine.bring_up(geometry(), lambda link: register(link, pool))
        assert running.link.wait_joined(10) is not None
        closed: list[int] = []
        engine.at_close(lambda: closed.append(1))
        assert engine.close()
        assert closed == [1]
        assert engine.running is None
        assert [op.name for op, _ in server.seen].count("UNREGISTER") == 1
        assert engine.close()
        assert closed == [1]


def test_uncached_is_said_once_and_final(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.bring_up(geometry(), nothing)
    engine.run_uncached("first reason")
    engine.run_uncached("second reason")
    assert caplog.text.count("uncached") == 1
    assert "first reason" in caplog.text
    assert engine.running is None
    assert engine.uncached_because == "first reason"
    engine.close()


def test_close_without_a_server_is_bounded(engine: Engine) -> None:
    engine.bring_up(geometry(), nothing)
    begin_s = time.monotonic()
    engine.close()
    assert time.monotonic() - begin_s < 5


def test_close_before_anything_ran(engine: Engine) -> None:
    assert engine.close()


@pytest.mark.usefixtures("url")
def test_an_engine_nobody_uses_any_more_closes_itself(short_dir: Path) -> None:
    pool = make_pool()
    with Responder(short_dir) as server:
        made = engine_for(Args(), "worker", Member())
        made.bring_up(geometry(), lambda link: register(link, pool)).link.wait_joined(10)
        gone = weakref.ref(made)
        del made
        until(lambda: gc.collect() >= 0 and gone() is None)
        until(lambda: "UNREGISTER" in [op.name for op, _ in server.seen])

"""A real server's spans at a real OTLP receiver; and what a collector that is none does to it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from protocol.messages import Lookup, LookupReply, Stats, StatsReply, Store
from protocol.traceparent import SpanRef
from tests.wire.client import Engine, make_keys
from tests.wire.ports import free_port
from tests.wire.process import ServerProcess, is_alive, wait_until

collector = pytest.importorskip("tests.wire.collector")

SIZE = ("--l1-size", "64M", "--extent-size", "4M")
TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


def to(url: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}


def stats(engine: Engine) -> dict[str, int]:
    return engine.wire.call(Stats(), StatsReply).values


def look_up(engine: Engine, number: int, traceparent: str) -> LookupReply:
    body = Lookup(
        session=engine.session,
        request=number,
        start=0,
        keys=b"".join(make_keys(number, 4)),
        traceparent=traceparent,
    )
    return engine.wire.call(body, LookupReply)


def test_messages_that_name_a_span_become_its_children(short_dir: Path, shm_dir: Path) -> None:
    with (
        collector.Collector() as end,
        ServerProcess(short_dir, shm_dir / "a", *SIZE, "--traces", "1", environ=to(end.url)) as at,
    ):
        with Engine(at.url, at.side_path) as engine:
            assert "traces" in engine.hello.capabilities
            engine.register()
            look_up(engine, 7, str(SpanRef(TRACE, PARENT)))
            look_up(engine, 8, str(SpanRef(TRACE, PARENT, False)))  # not sampled
            look_up(engine, 9, "")
            look_up(engine, 10, "no traceparent")
            refused = Store(
                session=engine.session,
                store=1,
                request=7,
                shard=0,
                start=0,
                parent=b"",
                keys=bytes(48),
                pages=bytes(4),
                traceparent=str(SpanRef(TRACE, PARENT + 1)),
            )
            assert engine.wire.reply(engine.wire.submit(refused)).error is not None
            assert wait_until(lambda: len(end.spans) == 2)
            assert wait_until(lambda: stats(engine)["traces_spans_sent"] == 2)
            told = stats(engine)
            assert (told["traces_noted"], told["traces_left_out"]) == (2, 0)
            [lookup] = end.named("kvkeep.server.lookup")
            [store] = end.named("kvkeep.server.store")
            assert lookup.trace_id == store.trace_id == TRACE.to_bytes(16, "big")
            assert lookup.parent_span_id == PARENT.to_bytes(8, "big")
            assert 0 <= time.time_ns() - lookup.start_time_unix_nano < 30e9
            assert 0 < lookup.end_time_unix_nano - lookup.start_time_unix_nano < 5e9
            facts = collector.facts(lookup)
            assert facts["kvkeep.request_key"] == 7
            assert facts["kvkeep.chunks"] == 4
            assert facts["kvkeep.ready"] == 0
            assert facts["kvkeep.code"] == "OK"
            assert facts["kvkeep.engine"] == engine.instance.hex()
            assert len(facts["kvkeep.namespace"]) == 32
            assert collector.facts(store)["kvkeep.code"] == "COUNT_MISMATCH"
            assert store.status.code == 2
            assert end.services[lookup.span_id] == "kvkeep-server"
            pid = told["traces_pid"]
        assert at.terminate() == 0
    assert not is_alive(pid)


def test_a_flood_is_cut_and_a_killed_process_is_another(short_dir: Path, shm_dir: Path) -> None:
    with (
        collector.Collector() as end,
        ServerProcess(short_dir, shm_dir / "a", *SIZE, "--traces", "1", environ=to(end.url)) as at,
        Engine(at.url, at.side_path) as engine,
    ):
        engine.register()
        begun_s = time.monotonic()
        for number in range(600):
            look_up(engine, number, str(SpanRef(TRACE, number + 1)))
        spent_s = time.monotonic() - begun_s
        told = stats(engine)
        assert told["traces_noted"] + told["traces_left_out"] == 600
        assert 200 <= told["traces_noted"] <= 200 + 200 * (spent_s + 0.1)
        os.kill(told["traces_pid"], signal.SIGKILL)
        assert wait_until(lambda: stats(engine)["traces_restarts"] == 1)
        time.sleep(0.05)  # room for one more
        look_up(engine, 601, str(SpanRef(TRACE, 1 << 62)))
        last = (1 << 62).to_bytes(8, "big")
        assert wait_until(lambda: any(one.parent_span_id == last for one in list(end.spans)))


@pytest.mark.parametrize("what", ["dead", "slow"])
def test_a_collector_in_trouble_harms_nobody(short_dir: Path, shm_dir: Path, what: str) -> None:
    with collector.Collector(wait_s=3.0) as end:
        url = end.url if what == "slow" else f"http://127.0.0.1:{free_port()}"
        with ServerProcess(
            short_dir, shm_dir / "a", *SIZE, "--traces", "1", environ=to(url)
        ) as server:
            with Engine(server.url, server.side_path) as engine:
                engine.register()
                slowest_s = 0.0
                for number in range(60):
                    begun_s = time.monotonic()
                    look_up(engine, number, str(SpanRef(TRACE, number + 1)))
                    slowest_s = max(slowest_s, time.monotonic() - begun_s)
                assert slowest_s < 1
                assert wait_until(lambda: stats(engine)["traces_spans_lost"] >= 60)
            begun_s = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - begun_s < 5
            assert server.log().count("traces_said") == 1


def test_an_address_without_a_scheme_is_refused_in_one_line_and_the_server_serves(
    short_dir: Path, shm_dir: Path
) -> None:
    environ = to("me:secret@localhost:4318")
    with ServerProcess(short_dir, shm_dir / "a", *SIZE, "--traces", "1", environ=environ) as server:
        assert wait_until(lambda: "traces_refused: " in server.log())
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            assert look_up(engine, 1, str(SpanRef(TRACE, 1))).ready == 0
        [line] = [one for one in server.log().splitlines() if "traces" in one]
        assert "_ENDPOINT is localhost:4318: expected http://HOST:PORT or https://…" in line
        assert "secret" not in line


def test_off_it_knows_nothing_of_traces(short_dir: Path, shm_dir: Path) -> None:
    told: dict[str, Any] = {}
    for arguments, environ in (((), to("http://127.0.0.1:9")), (("--traces", "0.5"), {})):
        with (
            ServerProcess(short_dir, shm_dir / "a", *SIZE, *arguments, environ=environ) as server,
            Engine(server.url, server.side_path) as engine,
        ):
            assert "traces" not in engine.hello.capabilities
            engine.register()
            assert look_up(engine, 1, str(SpanRef(TRACE, 1))).ready == 0
            told = stats(engine)
            assert [name for name in told if name.startswith("traces_")] == []
            has_said = "traces_off: traces are off: neither OTEL_" in server.log()
            assert has_said == bool(arguments)
    assert told["complaint_traces_off"] == 1

"""One request's spans in engine and server are one trace; without a collector all goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.enginerig import EngineRig, launched, write_model
from tests.adapter.hostlike import tokens
from tests.wire.ports import free_port
from tests.wire.process import wait_until

collector = pytest.importorskip("tests.wire.collector")
SALT = "a salt that no span may have"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two busy cores must not turn hits into misses; budgets have tests of their own."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


def traced(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("KVKEEP_TRACES", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def run(url: str, model: Path, prompt: list[int]) -> tuple[int, dict[str, int]]:
    """A request that is saved, and the same one again; what was offered, and the counters."""
    rig = EngineRig(url, write_model(model)).register()
    try:
        assert rig.run_saved(prompt, cache_salt=SALT).offered == 0
        offered = rig.run_saved(prompt, cache_salt=SALT).offered
        return offered, rig.worker.counters()
    finally:
        rig.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_engine_and_server_make_one_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", mode)
    with collector.Collector() as end:
        traced(monkeypatch, end.url)
        with launched() as server:
            assert run(server.url, tmp_path / "m", tokens(22))[0] == 20
            assert wait_until(lambda: len(end.named("kvkeep.server.store")) >= 1)
            assert wait_until(lambda: len(end.named("kvkeep.server.lookup")) == 2)
            assert wait_until(lambda: len(end.named("kvkeep.request")) == 2)
        told = list(end.spans)
    facts = {span.span_id: collector.facts(span) for span in told}
    roots = {span.trace_id: span for span in told if span.name == "kvkeep.request"}
    miss, hit = sorted(roots.values(), key=lambda span: span.start_time_unix_nano)
    assert facts[miss.span_id]["kvkeep.outcome"] == "miss"
    assert facts[hit.span_id] == {
        **facts[hit.span_id],
        "kvkeep.outcome": "loaded",
        "kvkeep.prompt_tokens": 22,
        "kvkeep.chunks_requested": 5,
        "kvkeep.chunks_hit": 5,
        "kvkeep.chunks_loaded": 5,
        "kvkeep.tokens_offered": 20,
        "kvkeep.request_id": 2,
    }
    by_id = {span.span_id: span for span in told}
    for span in told:
        root = roots[span.trace_id]
        if span is root:
            assert span.parent_span_id == b""
        elif span.name.startswith("kvkeep.server."):
            parent = by_id[span.parent_span_id]
            pairs = {"lookup": "lookup", "retrieve": "retrieve", "store": "save"}
            assert parent.name == f"kvkeep.{pairs[span.name.rpartition('.')[2]]}"
            assert (span.trace_id, parent.trace_id) == (root.trace_id, root.trace_id)
            assert span.start_time_unix_nano >= parent.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
            for name in ("kvkeep.namespace", "kvkeep.engine"):
                assert facts[span.span_id][name] == facts[hit.span_id][name]
        else:
            assert span.parent_span_id == root.span_id
    names = sorted(span.name for span in told if span.trace_id == hit.trace_id)
    [load] = [one for one in told if one.name == "kvkeep.load"]
    assert facts[load.span_id] == {"kvkeep.chunks": 5, "kvkeep.in_background": mode == "async"}
    assert {"kvkeep.load", "kvkeep.lookup", "kvkeep.request", "kvkeep.retrieve"} <= set(names)
    [save] = [one for one in told if one.name == "kvkeep.save" and one.trace_id == miss.trace_id]
    assert facts[save.span_id]["kvkeep.published"] == 5
    assert {end.services[one.span_id] for one in told} == {"kvkeep-adapter", "kvkeep-server"}
    assert SALT not in str(facts)
    assert all(span.status.code == 0 for span in told)


def test_a_server_without_traces_is_not_sent_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with launched() as server, collector.Collector() as end:
        traced(monkeypatch, end.url)
        assert run(server.url, tmp_path / "m", tokens(22))[0] == 20
        assert wait_until(lambda: len(end.named("kvkeep.request")) == 2)
        assert set(end.services.values()) == {"kvkeep-adapter"}


def test_a_dead_collector_harms_no_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with launched() as server:
        traced(monkeypatch, f"http://127.0.0.1:{free_port()}")
        offered, counters = run(server.url, tmp_path / "m", tokens(22))
        assert offered == 20
        assert counters["spans_dropped"] == 0


@pytest.mark.parametrize("lacking", ["package", "endpoint"])
def test_what_is_missing_is_said_once_and_the_engine_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVKEEP_TRACES", "1")
    if lacking == "package":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with launched() as server:
        offered, counters = run(server.url, tmp_path / "m", tokens(22))
    assert offered == 20
    lines: list[Any] = [one for one in caplog.records if "no traces" in one.getMessage()]
    assert len(lines) == 1
    assert counters["traces_off"] == 1
    wanted = {
        "package": "pip install 'opentelemetry-sdk>=",
        "endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    }
    assert wanted[lacking] in lines[0].getMessage()

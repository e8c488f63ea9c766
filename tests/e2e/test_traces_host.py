"""The conformance host, traced: it computes the same, and each request has one root."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
collector = pytest.importorskip("tests.wire.collector")

from adapter.conformance.host.weights import TINY, write_model_dir  # noqa: E402
from tests.adapter.enginerig import launched  # noqa: E402
from tests.e2e.torchhost import BLOCK, engine, prompt, same  # noqa: E402
from tests.wire.process import wait_until  # noqa: E402

pytestmark = pytest.mark.torch
WAIT_S = 60.0


def test_a_traced_host_loads_to_the_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
    model, text = write_model_dir(tmp_path, TINY), prompt(5 * BLOCK + 3, seed=3)
    with collector.Collector() as end:
        monkeypatch.setenv("KVKEEP_TRACES", "1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", end.url)
        with launched() as server, engine(model, server.url) as host:
            first = host.submit(text, 4).result(WAIT_S)
            host.forget_reuse(WAIT_S)
            again = host.submit(text, 4).result(WAIT_S)
            assert again.num_loaded_tokens == 5 * BLOCK
            assert same(first, again)
            assert wait_until(lambda: len(end.named("kvkeep.request")) == 2)
        told = list(end.spans)
    outcomes = [collector.facts(one)["kvkeep.outcome"] for one in told if not one.parent_span_id]
    assert sorted(outcomes) == ["loaded", "miss"]
    ids = {one.span_id for one in told}
    assert all(one.parent_span_id in ids for one in told if one.parent_span_id)
    assert {one.name for one in told} >= {"kvkeep.load", "kvkeep.save", "kvkeep.server.store"}

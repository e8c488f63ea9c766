"""Requests of one burst that share a cold prefix: each saves its own part too. Without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapter.enginerig import EngineRig, launched, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens

NUM_REQUESTS = 6


def test_a_burst_with_a_common_prefix_saves_every_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "100")
    common = tokens(40, seed=1)
    prompts = [[*common, *tokens(21, seed=10 + n)] for n in range(NUM_REQUESTS)]
    with launched() as server:
        rig = EngineRig(server.url, write_model(tmp_path / "m"), num_pages=256).register()
        begun = [rig.begin(prompt) for prompt in prompts]
        reports = [
            Report(request.request_id, prompt, pages, 0, len(prompt))
            for prompt, (request, _, pages) in zip(prompts, begun, strict=True)
        ]

        def forward() -> None:
            for prompt, (_, _, pages) in zip(prompts, begun, strict=True):
                rig.fill(prompt, pages, 0)

        rig.iterate(Output(reports), forward=forward)
        held = []
        for request, _, pages in begun:
            request.tokens.append(1)
            if rig.scheduler.request_finished(request, pages):
                held.append(request.request_id)
        assert len(held) == NUM_REQUESTS
        rig.collect(tuple(held))
        for request_id in held:
            rig.settle(request_id)
        for prompt in prompts:
            assert rig.query(FakeRequest(rig.next_id, list(prompt))) == 60
            rig.next_id += 1
            rig.iterate(Output())
            rig.run(prompt)  # every byte of it
        assert rig.worker.counters().get("saves_stopped_busy", 0) == 0
        rig.close()

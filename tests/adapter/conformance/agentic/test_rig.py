"""Sizes that fit, and settings that are put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.agentic import rig
from adapter.conformance.agentic.rig import Scale
from adapter.conformance.agentic.workload import Workload

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("block_tokens", [32, 256])
def test_a_token_takes_128_kib_and_everything_has_room(block_tokens: int) -> None:
    scale = Scale(Workload(block_tokens))
    assert scale.token_bytes == 128 * 1024
    assert scale.page_bytes == block_tokens * 128 * 1024
    assert scale.extent_bytes % 4096 == 0
    assert scale.extent_bytes <= 1 << 30
    least = scale.workload.distinct_blocks * scale.page_bytes
    assert least < scale.arena_bytes < least * 1.2
    longest = scale.workload.max_prompt_tokens + scale.workload.answer_tokens
    assert scale.pool_pages * block_tokens > longest


def test_small_pages_keep_the_workload() -> None:
    scale = Scale(Workload(32))
    assert scale.small().workload is scale.workload
    assert scale.small().token_bytes == 64


def test_an_engine_that_cannot_be_brought_up_leaves_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "7")
    before = dict(os.environ)
    with (
        pytest.raises(Exception, match="tcp"),
        rig.engine(Scale(Workload(32)).small(), "tcp://10.0.0.1:1", tmp_path / "m"),
    ):
        raise AssertionError("the engine came up")
    assert dict(os.environ) == before

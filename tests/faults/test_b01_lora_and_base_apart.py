"""B01: KV made under one LoRA adapter, salt or image is never served under another."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.wire.process import ServerProcess

PROMPT = tokens(22, seed=31)
FULL = 20
X, Y = "11" * 32, "22" * 32


def image(number: int, position: int) -> dict[str, Any]:
    return {
        "multimodal_hashes": [[number] * 8],
        "multimodal_positions": [position],
        "multimodal_lengths": [2],
    }


SCOPES: list[dict[str, Any]] = [
    {},
    {"lora_task_id": 0},
    {"lora_task_id": 1},
    {"lora_task_id": 2},
    {"cache_salt": "1"},
    {"cache_salt": 1},
    {"cache_salt": "a"},
    {"cache_salt": "ab"},
    {"cache_salt": "a", "lora_task_id": 1},
    {"cache_salt": "1", "lora_task_id": 2},
    image(1, 0),
    image(2, 0),
    image(1, 1),
    {**image(1, 0), "cache_salt": "a"},
    {**image(1, 0), "lora_task_id": 1},
]


def test_each_scope_is_served_only_what_it_stored(server: ServerProcess, tmp_path: Path) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    try:
        for scope in SCOPES:
            assert rig.run_saved(PROMPT, **scope).offered == 0, scope
        for scope in SCOPES:
            assert rig.run_saved(PROMPT, **scope).offered == FULL, scope
        for unlike in ({"lora_task_id": 3}, {"cache_salt": "b"}, image(3, 0)):
            assert rig.run(PROMPT, **unlike).offered == 0, unlike
    finally:
        rig.close()


def test_an_image_later_in_the_prompt_leaves_earlier_blocks_shared(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    try:
        rig.run_saved(PROMPT, **image(1, 8))
        assert rig.run_saved(PROMPT, **image(2, 8)).offered == 8
        assert rig.run_saved(PROMPT).offered == 8
    finally:
        rig.close()


def test_adapters_are_shared_by_content_and_not_by_number(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "m")

    def rig_with(digests: dict[str, str]) -> EngineRig:
        monkeypatch.setenv("TRTLLM_KVKEEP_LORA_DIGESTS", json.dumps(digests))
        return EngineRig(server.url, model).register()

    one, two = rig_with({"1": X}), rig_with({"1": Y, "7": X})
    try:
        assert one.run_saved(PROMPT, lora_task_id=1).offered == 0
        assert two.run(PROMPT, lora_task_id=1).offered == 0
        assert two.run(PROMPT).offered == 0
        assert two.run(PROMPT, lora_task_id=7).offered == FULL
    finally:
        one.close()
        two.close()


def test_an_adapter_without_a_digest_is_shared_with_no_other_engine(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P09
    model = write_model(tmp_path / "m")
    monkeypatch.setenv("TRTLLM_KVKEEP_LORA_DIGESTS", json.dumps({"1": X}))
    known = EngineRig(server.url, model).register()
    monkeypatch.delenv("TRTLLM_KVKEEP_LORA_DIGESTS")
    rigs = [known, *(EngineRig(server.url, model).register() for _ in range(2))]
    try:
        for rig in rigs:
            assert rig.run_saved(PROMPT, lora_task_id=1).offered == 0
        for rig in rigs:
            assert rig.run(PROMPT, lora_task_id=1).offered == FULL
    finally:
        for rig in rigs:
            rig.close()


def test_no_two_scopes_of_the_table_are_equal() -> None:
    texts = [json.dumps(scope, sort_keys=True) for scope in SCOPES]
    assert all(a != b for a, b in itertools.combinations(texts, 2))

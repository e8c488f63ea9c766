import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.demo import engine
from adapter.conformance.host.weights import ModelConfig, write_model_dir

pytestmark = pytest.mark.torch
PROMPT = list(range(40))


def serve(*orders: dict[str, Any]) -> list[dict[str, Any]]:
    stdout = io.StringIO()
    stdin = io.StringIO("".join(json.dumps(order) + "\n" for order in orders))
    engine.serve(stdin, engine.Voice(stdout))
    return [json.loads(line) for line in stdout.getvalue().splitlines()]


@pytest.fixture
def start(tmp_path: Path) -> dict[str, Any]:
    model = write_model_dir(tmp_path / "model", ModelConfig(num_hidden_layers=2))
    return {
        "order": "start",
        "model": str(model),
        "url": None,
        "num_blocks": 16,
        "tokens_per_block": 8,
    }


def submit(name: str, **changes: Any) -> dict[str, Any]:
    request = {"name": name, "tokens": PROMPT, "max_new_tokens": 3}
    return {"order": "submit", "requests": [request], **changes}


def collect(folder: Path, *, compare: bool) -> dict[str, Any]:
    return {"order": "collect", "logits_dir": str(folder), "compare": compare, "timeout_s": 30}


def test_a_reference_is_written_and_compared_with(start: dict[str, Any], tmp_path: Path) -> None:
    begun, _, written, _, compared, figures = serve(
        start,
        submit("a"),
        collect(tmp_path, compare=False),
        submit("a"),
        collect(tmp_path, compare=True),
        {"order": "figures"},
    )
    assert begun == {
        "event": "done",
        "result": {"page_bytes": 2 * 2 * 2 * 8 * 16 * 4, "pool_pages": 16},
    }
    (first,) = written["result"]["answers"]
    (second,) = compared["result"]["answers"]
    assert first["num_logits"] == second["num_logits"] == len(second["tokens"]) == 3
    assert second["logits_equal"]
    assert second["tokens"] == first["tokens"]
    assert (second["num_device_tokens"], second["num_loaded_tokens"]) == (0, 0)
    assert second["num_computed_tokens"] == len(PROMPT)
    assert figures["result"]["longest_hook_ms"] == 0.0  # no connector, no hooks


def test_another_models_logits_are_not_equal(start: dict[str, Any], tmp_path: Path) -> None:
    serve(start, submit("a"), collect(tmp_path, compare=False))
    other = write_model_dir(tmp_path / "other", ModelConfig(num_hidden_layers=2, seed=2))
    *_, compared = serve(
        {**start, "model": str(other)}, submit("a"), collect(tmp_path, compare=True)
    )
    assert compared["result"]["answers"][0]["logits_equal"] is False


def test_what_goes_wrong_is_told_and_the_next_order_is_taken(start: dict[str, Any]) -> None:
    too_long = {"name": "b", "tokens": [1] * 2000, "max_new_tokens": 1}
    early, unknown, _, refused, settled = serve(
        submit("a"),
        {"order": "dance"},
        start,
        {"order": "submit", "requests": [too_long]},
        {"order": "settle", "timeout_s": 5},
    )
    assert early == {"event": "failed", "reason": "RuntimeError: the first order must be start"}
    assert unknown == {"event": "failed", "reason": "KeyError: 'dance'"}
    assert refused["event"] == "failed"
    assert "2001 tokens" in refused["reason"]
    assert settled == {"event": "done", "result": {"forgotten_pages": 0, "is_there": False}}


def test_a_replay_needs_pages_that_can_be_verified(start: dict[str, Any]) -> None:
    *_, refused = serve(start, {"order": "replay", "num_requests": 1})
    assert "payload model" in refused["reason"]


def test_no_offer_is_told_from_an_offer(start: dict[str, Any], tmp_path: Path) -> None:
    _, _, waited, _, _ = serve(
        start,
        submit("a", hold_offer=True),
        {"order": "wait_for_offer", "timeout_s": 30},
        {"order": "go_on"},
        collect(tmp_path, compare=False),
    )
    assert waited == {"event": "done", "result": {"offered": False}}


def test_a_held_offer_stands_between_query_and_load(
    start: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.adapter.conformance.host import connectors

    config = connectors.connector_config("Dict", "dict://held")
    monkeypatch.setattr(engine, "make_kv_connector_config", lambda url: config)
    start = {**start, "url": "dict://held"}
    desk = engine.Desk(engine.Voice(io.StringIO()))
    del start["order"]
    desk.start(**start)
    request = {"name": "a", "tokens": PROMPT, "max_new_tokens": 3}
    try:
        desk.submit(requests=[request])
        desk.collect(logits_dir=str(tmp_path), compare=False, timeout_s=30)
        desk.settle(timeout_s=10)
        loads = desk.engine.hooks.num_calls("start_load_kv")
        desk.submit(requests=[request], hold_offer=True)
        assert desk.wait_for_offer(timeout_s=30) == {"offered": True}
        assert desk.engine.hooks.num_calls("start_load_kv") == loads
        threading.Timer(0.05, desk.go_on).start()
        (answer,) = desk.collect(logits_dir=str(tmp_path), compare=True, timeout_s=30)["answers"]
    finally:
        desk.close()
    assert answer["num_loaded_tokens"] == 32
    assert answer["logits_equal"]

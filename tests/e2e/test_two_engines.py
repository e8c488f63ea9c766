"""Two engines, one server: hits are exact to the bit, scopes stay apart, turns build on turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.requests import Multimodal  # noqa: E402
from adapter.conformance.host.weights import TINY, WIDE, write_model_dir  # noqa: E402
from tests.adapter.enginerig import launched  # noqa: E402
from tests.e2e.torchhost import BLOCK, engine, prompt, same  # noqa: E402
from tests.wire.process import ServerProcess  # noqa: E402

pytestmark = pytest.mark.torch
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two busy cores must not turn hits into misses; budgets have tests of their own."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[Any]:
    """Runs without any cache."""
    with engine(model, None) as host:
        yield lambda tokens, count: host.submit(tokens, count).result(WAIT_S)


@pytest.mark.parametrize("overlap", [True, False])
def test_what_one_engine_computed_another_loads_to_the_bit(
    server: ServerProcess, model: Path, reference: Any, overlap: bool
) -> None:
    options = HostOptions(overlap=overlap)
    text = prompt(7 * BLOCK + 5, seed=int(overlap))
    with engine(model, server.url, options=options, max_num_tokens=40) as first:
        result = first.submit(text, 6).result(WAIT_S)
        assert same(result, reference(text, 6))
        first.forget_reuse(WAIT_S)
        again = first.submit(text, 6).result(WAIT_S)
        assert again.num_loaded_tokens == 7 * BLOCK
        assert same(again, result)
    with engine(model, server.url, options=options, max_num_tokens=40) as second:
        for length in (7 * BLOCK + 5, 7 * BLOCK, 7 * BLOCK - 1, 5 * BLOCK + 1):
            second.forget_reuse(WAIT_S)
            result = second.submit(text[:length], 4).result(WAIT_S)
            assert result.num_loaded_tokens == (length - 1) // BLOCK * BLOCK
            assert same(result, reference(text[:length], 4))


def test_generated_blocks_are_hit_by_the_next_turn(
    server: ServerProcess, model: Path, reference: Any
) -> None:
    text = prompt(2 * BLOCK + 3, seed=10)
    with engine(model, server.url) as host:
        first = host.submit(text, 3 * BLOCK).result(WAIT_S)
        host.forget_reuse(WAIT_S)
        turn = [*text, *first.tokens, *prompt(9, seed=11)]
        second = host.submit(turn, 4).result(WAIT_S)
        # All but the last token are known to be computed; the newest one lags under overlap.
        assert second.num_loaded_tokens >= (len(text) + len(first.tokens) - 2) // BLOCK * BLOCK
        assert same(second, reference(turn, 4))


@pytest.mark.parametrize("partial", [False, True])
def test_device_matched_prefixes_and_the_server_add_up(
    server: ServerProcess, model: Path, reference: Any, partial: bool
) -> None:
    text = prompt(6 * BLOCK + 2, seed=20 + int(partial))
    with engine(model, server.url) as host:
        host.submit(text, 2).result(WAIT_S)
        host.forget_reuse(WAIT_S)
    with engine(model, server.url, partial=partial) as host:
        host.submit([*text[: 2 * BLOCK], *prompt(5, seed=30)], 2).result(WAIT_S)
        result = host.submit(text, 4).result(WAIT_S)
        assert result.num_device_tokens >= 2 * BLOCK
        if result.num_device_tokens % BLOCK == 0:
            assert result.num_device_tokens + result.num_loaded_tokens == 6 * BLOCK
        assert same(result, reference(text, 4))


def test_scopes_do_not_mix(server: ServerProcess, model: Path, reference: Any) -> None:
    text = prompt(3 * BLOCK + 1, seed=40)
    image = Multimodal(((1,) * 8,), (3,), (4,))
    other = Multimodal(((2,) * 8,), (3,), (4,))
    hidden = Multimodal(None, (3,), (4,))
    scopes: list[dict[str, Any]] = [
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"lora_task_id": 1},
        {"multimodal": image},
        {"multimodal": other},
    ]
    with engine(model, server.url) as host:
        for scope in scopes:
            assert host.submit(text, 2, **scope).result(WAIT_S).num_loaded_tokens == 0
            host.forget_reuse(WAIT_S)
        for scope in scopes:
            result = host.submit(text, 2, **scope).result(WAIT_S)
            assert result.num_loaded_tokens == 3 * BLOCK
            assert same(result, reference(text, 2))
            host.forget_reuse(WAIT_S)
        for _ in range(2):
            assert host.submit(text, 2, multimodal=hidden).result(WAIT_S).num_loaded_tokens == 0
            host.forget_reuse(WAIT_S)
    with engine(model, server.url) as host:  # a LoRA without a digest is not shared (P09)
        assert host.submit(text, 2, lora_task_id=1).result(WAIT_S).num_loaded_tokens == 0
        assert host.submit(text, 2, cache_salt="a").result(WAIT_S).num_loaded_tokens == 3 * BLOCK


@pytest.mark.parametrize("epoch", ["E1", "E3"])
def test_older_and_newer_hosts(
    server: ServerProcess, model: Path, reference: Any, epoch: Any
) -> None:
    text = prompt(3 * BLOCK + 1, seed=50 + int(epoch[1]))
    options = HostOptions(epoch=epoch, cuda_graphs=True)
    with engine(model, server.url, options=options) as host:
        host.submit(text, 2).result(WAIT_S)
        host.forget_reuse(WAIT_S)
        result = host.submit(text, 5).result(WAIT_S)
        assert result.num_loaded_tokens == 3 * BLOCK
        assert same(result, reference(text, 5))


def test_many_at_once_share_what_they_can(
    server: ServerProcess, model: Path, reference: Any
) -> None:
    common = prompt(3 * BLOCK, seed=60)
    texts = [[*common, *prompt(9 + 3 * n, seed=61 + n)] for n in range(6)]
    with engine(model, server.url, num_blocks=96) as host:
        for _ in range(2):
            handles = [host.submit(text, 4) for text in texts]
            for text, handle in zip(texts, handles, strict=True):
                assert same(handle.result(WAIT_S), reference(text, 4))
            host.forget_reuse(WAIT_S)
        counters = host.connector.worker.counters()
        assert counters["pages_loaded"] >= 3
        assert counters["held_pages"] == 0


def test_two_models_and_two_engines_at_once_stay_apart(
    server: ServerProcess, model: Path, tmp_path: Path, reference: Any
) -> None:
    """Same texts everywhere: one model shares between engines, the other has none of it."""
    wide = write_model_dir(tmp_path / "wide", WIDE)
    texts = [prompt(4 * BLOCK + 3 + n, seed=70 + n) for n in range(4)]
    with (
        engine(wide, None) as other_reference,
        engine(model, server.url) as first,
        engine(model, server.url) as second,
        engine(wide, server.url) as other,
    ):
        for turn in range(2):
            for text in texts:
                handles = [(host, host.submit(text, 3)) for host in (first, second, other)]
                for host, handle in handles:
                    result = handle.result(WAIT_S)
                    if host is other:
                        assert same(result, other_reference.submit(text, 3).result(WAIT_S))
                    else:
                        assert same(result, reference(text, 3))
                    if turn == 0 and host is other:
                        assert result.num_loaded_tokens == 0
                    elif turn == 1:
                        assert result.num_loaded_tokens == 4 * BLOCK
            for host in (first, second, other):
                host.forget_reuse(WAIT_S)

"""A restarted server is warm: for the engine that saved, and for one that comes later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.weights import TINY, write_model_dir  # noqa: E402
from server import asking  # noqa: E402
from tests.e2e.torchhost import BLOCK, engine, prompt, same  # noqa: E402
from tests.server.heirs import launch  # noqa: E402
from tests.wire.process import wait_until  # noqa: E402

pytestmark = pytest.mark.torch
WAIT_S = 60.0
TEXTS = [prompt(4 * BLOCK + 1, seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[Any]:
    with engine(model, None) as host:
        yield lambda tokens, count: host.submit(tokens, count).result(WAIT_S)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


def loads_right(host: Any, text: list[int], reference: Any) -> bool:
    """Whether a prompt was loaded from the server; its answer is compared in any case."""
    host.forget_reuse(WAIT_S)
    answer = host.submit(text, 3).result(WAIT_S)
    assert same(answer, reference(text, 3))
    return bool(answer.num_loaded_tokens == 4 * BLOCK)


@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_what_one_engine_saved_is_loaded_after_a_restart(
    short_dir: Path, shm_dir: Path, model: Path, reference: Any, how: str
) -> None:
    with launch(short_dir, shm_dir / "a") as server, engine(model, server.url) as first:
        for text in TEXTS:
            assert wait_until(lambda t=text: loads_right(first, t, reference), WAIT_S, 0.1)
        server.kill() if how == "kill -9" else server.terminate()
        for text in TEXTS:  # nobody is there
            assert same(first.submit(text, 3).result(WAIT_S), reference(text, 3))
        with launch(short_dir, shm_dir / "a") as server:
            counted = asking.stats(server.side_path, 10.0)
            assert counted["adopted_chunks"] >= 4 * len(TEXTS)
            assert counted.get("stored_chunks", 0) == 0
            with engine(model, server.url) as second:
                for text in TEXTS:
                    assert wait_until(lambda t=text: loads_right(second, t, reference), 20, 0.1)
            for text in TEXTS:
                assert wait_until(lambda t=text: loads_right(first, t, reference), 20, 0.1)

"""A window shorter than the prompt: what it lets go of is saved before, and is loaded again.

Where it matters a step of these engines takes as long as one of a real model's does, for a page
that leaves the window is lost to a save that is slower than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.weights import SLIDING, write_model_dir
from tests.adapter.enginerig import launched
from tests.e2e.torchhost import BLOCK, engine, prompt, same
from tests.wire.process import ServerProcess, wait_until

pytestmark = pytest.mark.torch

WAIT_S = 30.0
TEXT = 5 * BLOCK + 3
"""Three tokens behind a block: its window's last blocks stay for some steps yet."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("sliding"), SLIDING)


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[Callable[[list[int]], Any]]:
    """Runs without any cache."""
    with engine(model, None) as host:

        def run(text: list[int]) -> Any:
            result = host.submit(text, 6).result(WAIT_S)
            host.forget_reuse(WAIT_S)
            return result

        yield run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")


class Pace:
    """Makes the next steps slow."""

    def __init__(self, step_s: float, num_steps: int) -> None:
        self.step_s = step_s
        self.num_steps = num_steps

    def __call__(self, point: str, _: tuple[int, ...]) -> None:
        if point == "launched" and self.num_steps:
            self.num_steps -= 1
            time.sleep(self.step_s)


def options(epoch: str, pace: Pace, **changes: Any) -> HostOptions:
    return HostOptions(epoch=epoch, layout="v2", probe=pace, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sync", "async", "layerwise"])
@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize(
    ("epoch", "overlap", "max_num_tokens"),
    # In one go the last window is enough, for all of an offer is taken up; in parts each part of
    # it must be loadable, so every block of the window's group is needed.
    [("E3", True, 256), ("E3", False, 256), ("E3", True, BLOCK), ("E4", True, BLOCK)],
)
def test_a_prompt_longer_than_the_window_is_loaded(
    server: ServerProcess,
    model: Path,
    reference: Callable[[list[int]], Any],
    monkeypatch: pytest.MonkeyPatch,
    epoch: str,
    overlap: bool,
    max_num_tokens: int,
    is_private: bool,
    mode: str,
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", mode)
    is_in_parts = max_num_tokens < TEXT
    pace = Pace(0.15, TEXT // BLOCK + 2 if is_in_parts else 0)
    opts = options(epoch, pace, overlap=overlap, private_pool=is_private)
    args = {"max_num_tokens": max_num_tokens, "enable_chunked_prefill": is_in_parts}
    salt = [len(mode), ord(epoch[1]), overlap + 2 * is_private, max_num_tokens % 251]
    text = [*salt, *prompt(TEXT - len(salt))]
    expected = reference(text)
    with engine(model, server.url, options=opts, **args) as host:
        for num_loaded in (0, 5 * BLOCK, 5 * BLOCK):
            result = host.submit(text, 6).result(WAIT_S)
            assert result.num_loaded_tokens == num_loaded, host.connector.worker.counters()
            assert same(result, expected)
            host.forget_reuse(WAIT_S)
        assert wait_until(lambda: host.connector.worker.counters()["open_saves"] == 0, WAIT_S)
        counts = host.connector.worker.counters()
    assert counts["held_pages"] == 0
    assert counts.get("ring_lots_lent", 0) == 0


def test_an_answer_is_kept_as_it_slides(
    server: ServerProcess, model: Path, reference: Callable[[list[int]], Any]
) -> None:
    """What is generated leaves the window block by block; all of it is there for the next turn."""
    text = prompt(BLOCK, seed=77)
    with engine(model, server.url, options=options("E4", Pace(0.03, 5 * BLOCK))) as host:
        answer = host.submit(text, 5 * BLOCK).result(WAIT_S)
        host.forget_reuse(WAIT_S)
        longer = [*text, *answer.tokens, *prompt(5, seed=78)]
        result = host.submit(longer, 6).result(WAIT_S)
        assert result.num_loaded_tokens == 5 * BLOCK, host.connector.worker.counters()
        assert same(result, reference(longer))
        host.forget_reuse(WAIT_S)

"""Two engine processes at once, one model, one server: each loads what the other saved, mid-flight.

Real processes with a real transformer; logits equal a run without any cache, bit for bit
(``torch.equal`` in the engine's process).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.demo.cast import ARENA_BYTES, EXACT, Answer, Engine, Server
from adapter.conformance.demo.processes import Stage, stage
from adapter.conformance.host.weights import TINY, write_model_dir
from tests.e2e.torchhost import BLOCK, prompt

pytestmark = pytest.mark.torch

SEED = int(os.environ.get("KV_E2E_SEED", "20261129"))
TURNS = max(1, int(os.environ.get("KV_E2E_ROUNDS", "60")) // 60)
NUM_BLOCKS = 5
GENERATED = 6
LONG = 400


def engine(on: Stage, name: str, model: Path, url: str | None) -> Engine:
    return Engine(
        on,
        name,
        model=model,
        url=url,
        num_blocks=96,
        tokens_per_block=BLOCK,
        settings=EXACT,
    )


@dataclass
class Cast:
    """Who plays; the reference's logits are kept in its folder."""

    server: Server
    one: Engine
    two: Engine


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    model = write_model_dir(tmp_path_factory.mktemp("e2e") / "model", TINY)
    with stage(ARENA_BYTES) as on:
        lonely = engine(on, "reference", model, None)
        for turn in range(TURNS + 1):
            lonely.submit(asked(turn), GENERATED)
            lonely.collect(compare=False)
        lonely.submit([("long", asked(TURNS)[0][1])], LONG)
        lonely.collect(compare=False)
        lonely.stop()
        server = Server(on, "server")
        made = Cast(server, *(engine(on, name, model, server.url) for name in ("one", "two")))
        yield made
        assert server.end() == 0


def asked(turn: int) -> list[tuple[str, list[int]]]:
    """Prompts of one turn, different from their first block on."""
    length = NUM_BLOCKS * BLOCK + 3
    return [(f"turn{turn}-{n}", prompt(length, seed=SEED + 100 * turn + n)) for n in range(6)]


def all_equal(answers: list[Answer]) -> None:
    for answer in answers:
        assert answer.logits_equal, answer.name
        assert answer.num_logits == GENERATED
        total = answer.num_device_tokens + answer.num_loaded_tokens + answer.num_computed_tokens
        assert total == NUM_BLOCKS * BLOCK + 3


def test_two_engines_at_once_load_from_each_other(cast: Cast) -> None:
    one, two = cast.one, cast.two
    for turn in range(TURNS):
        prompts = asked(turn)
        # Both at work on different and on equal prompts in the same moment.
        one.submit(prompts[:4], GENERATED)
        two.submit(prompts[2:], GENERATED)
        all_equal(one.collect() + two.collect())
        one.settle()
        two.settle()
        # Each asks for what only the other has computed, again in the same moment.
        one.submit(prompts[4:], GENERATED)
        two.submit(prompts[:2], GENERATED)
        crossed = one.collect() + two.collect()
        all_equal(crossed)
        for answer in crossed:
            assert answer.num_device_tokens == 0, answer
            assert answer.num_loaded_tokens == NUM_BLOCKS * BLOCK, answer
        one.settle()
        two.settle()


def test_what_an_engine_still_works_on_is_hit_by_the_other(cast: Cast) -> None:
    """A prompt's blocks are published while its request is still generating."""
    one, two = cast.one, cast.two
    [(name, text), *_] = asked(TURNS)
    one.submit([("long", text)], LONG)
    deadline_s = time.monotonic() + 30
    loaded = 0
    while loaded < NUM_BLOCKS * BLOCK and time.monotonic() < deadline_s:
        two.submit([(name, text)], GENERATED)
        [answer] = two.collect()
        assert answer.logits_equal
        loaded = answer.num_loaded_tokens
        two.settle()
    begin_s = time.monotonic()
    [long_one] = one.collect()
    waited_s = time.monotonic() - begin_s
    assert loaded == NUM_BLOCKS * BLOCK
    assert long_one.logits_equal
    assert waited_s > 0.01  # it was still at work when the other loaded

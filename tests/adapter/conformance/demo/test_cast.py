from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.conformance.demo.cast import Engine, Server
from adapter.conformance.demo.processes import DemoError, Stage, stage
from adapter.conformance.host.weights import ModelConfig, write_model_dir


@pytest.fixture
def on() -> Iterator[Stage]:
    with stage(1 << 20) as made:
        yield made


def test_a_server_says_one_line_and_ends_with_sigterm(on: Stage) -> None:
    server = Server(on, "server")
    assert server.url in server.line
    assert 0 < server.start_s < 30
    assert server.end() == 0
    with pytest.raises(DemoError, match=r"ended \(exit code 0\)"):
        server.read_line(5)  # nothing came after the one line
    with pytest.raises(DemoError, match="ended by itself"):
        server.end()


def test_a_second_server_takes_the_place_of_a_killed_one(on: Stage) -> None:
    first = Server(on, "first")
    with pytest.raises(DemoError, match=r"second .* ended \(exit code 2\)"):
        Server(on, "second")
    assert first.kill_9()
    third = Server(on, "third")
    assert third.url == first.url
    assert third.end() == 0


@pytest.mark.torch
def test_an_engine_follows_orders(on: Stage) -> None:
    pytest.importorskip("torch")
    model = write_model_dir(on.folder / "model", ModelConfig(num_hidden_layers=1))
    engine = Engine(on, "engine", model=model, url=None, num_blocks=16, tokens_per_block=8)
    assert engine.page_bytes == 2 * 2 * 8 * 16 * 4
    engine.submit([("a", range(30)), ("b", range(20))], 2)
    answers = engine.collect(compare=False)
    assert [(a.name, a.num_computed_tokens) for a in answers] == [("a", 30), ("b", 20)]
    again = engine.ask("b", range(20), 2)
    assert again.logits_equal
    assert again.tokens == answers[1].tokens
    engine.submit([("c", [1])], 1, hold_offer=True)
    assert not engine.wait_for_offer()
    engine.go_on()
    with pytest.raises(DemoError, match="payload model"):
        engine.replay(1, lambda done: None)
    assert engine.figures()["hooks"] == []


@pytest.mark.slow
@pytest.mark.torch
def test_an_engine_that_cannot_start_says_why(on: Stage) -> None:
    pytest.importorskip("torch")
    nowhere = Path(on.folder / "nowhere")
    with pytest.raises(DemoError, match=r"engine \(pid \d+\): FileNotFoundError"):
        Engine(on, "engine", model=nowhere, url=None, num_blocks=8, tokens_per_block=8)

"""Attention DP: each rank an engine of its own to the server, one key space for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.ranks.job import JobDiedError  # noqa: E402
from tests.e2e.ranked import (  # noqa: E402
    WAIT_S,
    check_nothing_left,
    check_pages_back,
    gauges,
    replicas,
)
from tests.e2e.torchhost import BLOCK, engine, prompt, same  # noqa: E402
from tests.wire.process import ServerProcess  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("patient")]


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[Any]:
    """Runs without any cache: each rank runs the whole attention."""
    with engine(model, None) as host:
        yield lambda tokens, count: host.submit(tokens, count).result(WAIT_S)


@pytest.fixture(scope="module")
def pair(server: ServerProcess, model: Path) -> Iterator[Any]:
    with replicas(model, server.url) as host:
        yield host


def test_a_rank_hits_what_another_stored(server: ServerProcess, pair: Any, reference: Any) -> None:
    text = prompt(7 * BLOCK + 5, seed=1)
    stored = pair.submit(text, 6, rank=0).result(WAIT_S)
    assert stored.num_loaded_tokens == 0
    assert same(stored, reference(text, 6))
    pair.forget_reuse(WAIT_S)
    for length, rank in ((7 * BLOCK + 5, 1), (7 * BLOCK, 1), (5 * BLOCK + 1, 0)):
        result = pair.submit(text[:length], 6, rank=rank).result(WAIT_S)
        assert result.num_loaded_tokens == (length - 1) // BLOCK * BLOCK
        assert same(result, reference(text[:length], 6))
        pair.forget_reuse(WAIT_S)
    check_pages_back(pair)
    now = gauges(server)
    assert (now["instances"], now["sessions"]) == (2, 2), "each rank is an engine of its own"
    check_nothing_left(server, 2)


def test_ranks_with_unequal_and_no_requests(
    server: ServerProcess, pair: Any, reference: Any
) -> None:
    before = [pair.stats(rank).connector["queries"] for rank in range(2)]
    texts = [prompt(2 * BLOCK + 9 * n, seed=10 + n) for n in range(6)]
    for turn in range(2):
        # All but one on rank 0: rank 1 is idle most of the time, and goes along.
        handles = [pair.submit(text, 5 + n, rank=int(n == 5)) for n, text in enumerate(texts)]
        for n, handle in enumerate(handles):
            result = handle.result(WAIT_S)
            assert same(result, reference(texts[n], 5 + n))
            if turn:
                assert result.num_loaded_tokens == (len(texts[n]) - 1) // BLOCK * BLOCK
        pair.forget_reuse(WAIT_S)
    after = [pair.stats(rank).connector["queries"] for rank in range(2)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [10, 2], "dummies are hidden"
    check_pages_back(pair)
    check_nothing_left(server, 2)


@pytest.mark.parametrize("epoch", ["E3", "E4"])
def test_loads_that_empty_a_rank(
    server: ServerProcess, model: Path, pair: Any, reference: Any, epoch: Any
) -> None:
    """Parked loads: the rank goes on with a dummy, or waits and begins the iteration again."""
    texts = [prompt(4 * BLOCK + 3 + n, seed=20 + n + 10 * int(epoch[1])) for n in range(4)]
    environ = {"TRTLLM_KVKEEP_LOAD_MODE": "async"}
    options = HostOptions(epoch=epoch)
    with replicas(model, server.url, options=options, environ=environ) as host:
        for turn in range(3):
            handles = [host.submit(text, 4, rank=(n + turn) % 2) for n, text in enumerate(texts)]
            for text, handle in zip(texts, handles, strict=True):
                result = handle.result(WAIT_S)
                assert result.num_loaded_tokens == (4 * BLOCK if turn else 0)
                assert same(result, reference(text, 4))
            host.forget_reuse(WAIT_S)
        host.delay(0, 0.5, "copy.before")
        alone = host.submit(texts[0], 4, rank=0).result(WAIT_S)
        assert alone.num_loaded_tokens == 4 * BLOCK
        assert same(alone, reference(texts[0], 4))
        host.forget_reuse(WAIT_S)
        assert host.stats(0).passes["copy.after"] >= 3
        check_pages_back(host)
    check_nothing_left(server, 2)  # of the pair


@pytest.mark.parametrize("deed", ["die", "fail"])
def test_a_rank_that_dies_or_fails_ends_that_job_alone(
    server: ServerProcess, model: Path, pair: Any, reference: Any, deed: Any
) -> None:
    text = prompt(5 * BLOCK + 2, seed=40 + len(deed))
    pair.submit(text, 3).result(WAIT_S)
    pair.forget_reuse(WAIT_S)
    with replicas(model, server.url) as host:
        host.arm(1, "copy.before", deed)
        victims = [host.submit(text, 30, rank=rank) for rank in range(2)]
        host.wait_dead(15.0)
        with pytest.raises(HostError):
            victims[1].result(WAIT_S)
        assert victims[0].done()
    check_nothing_left(server, 2)
    result = pair.submit(text, 3, rank=1).result(WAIT_S)
    assert result.num_loaded_tokens == 5 * BLOCK
    assert same(result, reference(text, 3))
    pair.forget_reuse(WAIT_S)
    check_pages_back(pair)


def test_an_epoch_without_it_refuses_to_start(server: ServerProcess, model: Path) -> None:
    with (
        pytest.raises(JobDiedError, match="enable_attention_dp"),
        replicas(model, server.url, options=HostOptions(epoch="E2")),
    ):
        pass

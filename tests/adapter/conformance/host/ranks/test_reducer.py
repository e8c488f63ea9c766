"""The all-reduce: one sum, in rank order, with the same bits on every rank."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError  # noqa: E402
from adapter.conformance.host.ranks.reducer import Reducer  # noqa: E402
from adapter.conformance.host.ranks.wire import RankLostError  # noqa: E402
from tests.adapter.conformance.host.ranks.meeting import (  # noqa: E402
    LIMIT_S,
    outcome,
    star,
    together,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sums_are_added_in_rank_order_and_equal_everywhere(size: int) -> None:
    torch.manual_seed(size)
    parts = torch.randn(5, size, 7, 64)
    wires = star(size)
    reducers = [Reducer(rank, wires[rank], LIMIT_S) for rank in range(size)]

    def work(rank: int) -> list[Any]:
        return [reducers[rank].sum(parts[turn, rank].clone()) for turn in range(5)]

    results = together([lambda rank=rank: work(rank) for rank in range(size)])  # type: ignore[misc]
    for turn in range(5):
        expected = parts[turn, 0].clone()
        for rank in range(1, size):
            expected += parts[turn, rank]
        assert all(torch.equal(result[turn], expected) for result in results)
    for reducer in reducers:
        reducer.close()


def test_a_rank_that_is_gone_is_an_error() -> None:
    wires = star(2)
    reducers = [Reducer(rank, wires[rank], LIMIT_S) for rank in range(2)]
    reducers[0].close()
    assert isinstance(outcome(lambda: reducers[1].sum(torch.ones(3))), RankLostError)
    reducers[1].close()
    with pytest.raises(HostError, match="needs one wire"):
        Reducer(2, [])

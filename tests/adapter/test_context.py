"""The context ends with its last user, in whatever order they leave."""

from __future__ import annotations

import itertools

import pytest

from adapter.context import SharedContext


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_one_ends_it(order: tuple[int, ...]) -> None:
    shared = SharedContext()
    shared.join()
    shared.join()
    for position, _ in enumerate(order):
        assert not shared.context.closed
        shared.leave()
        assert shared.context.closed == (position == 2)

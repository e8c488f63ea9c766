"""Ranks as threads of the test: each gets one end of a star of sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from adapter.conformance.host.ranks.wire import Wire, pair

Result = TypeVar("Result")
LIMIT_S = 20.0


def star(size: int) -> list[list[Wire]]:
    """Wires of each rank: the leader's to each follower, a follower's to the leader."""
    pairs = [pair("rank 0", f"rank {rank}") for rank in range(1, size)]
    return [[mine for mine, _ in pairs], *([theirs] for _, theirs in pairs)]


def together(actions: Sequence[Callable[[], Result]]) -> list[Result]:
    """Runs one action per rank at once; the first error counts."""
    with ThreadPoolExecutor(len(actions)) as pool:
        futures = [pool.submit(action) for action in actions]
        return [future.result(LIMIT_S) for future in futures]


def outcome(action: Callable[[], Any]) -> Any:
    """What an action returns or raises."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error

"""Ranks as threads of one process: what the ranks of a job say to each other, without sockets."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

LIMIT_S = 20.0
T = TypeVar("T")


class Table:
    """Where the ranks meet."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.said: list[Any] = [None] * size


class ThreadComm:
    """One rank's end of a table."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table = table
        self.rank = rank
        self.size = len(table.said)

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]

    def allgather(self, value: Any) -> list[Any]:
        self.table.said[self.rank] = value
        self.table.barrier.wait(LIMIT_S)
        heard = list(self.table.said)
        self.table.barrier.wait(LIMIT_S)
        return heard

    def abort(self, reason: str) -> None:
        self.table.barrier.abort()


def meet(size: int) -> list[ThreadComm]:
    table = Table(size)
    return [ThreadComm(table, rank) for rank in range(size)]


def on_all(work: Callable[[ThreadComm], T], comms: list[ThreadComm]) -> list[T]:
    """Run something on every rank at once."""
    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(work, comms))

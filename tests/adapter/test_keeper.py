"""The thread that never gives up and never raises: pauses, faults, orders."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from adapter import keeper as keeper_module
from adapter.enrolment import PoolFd, Registration
from adapter.household import Household
from adapter.keeper import PAUSE_FIRST_NS, PAUSE_LAST_NS, Keeper, Orders
from adapter.visit import Visit
from adapter.wake import Wake
from protocol.endpoint import parse
from protocol.errors import ErrorCode, UnreachableError
from protocol.messages import Op
from tests.adapter.linking import make_pool, shard_pool
from tests.adapter.responder import Responder, namespace, until
from tests.adapter.test_household import household


class Bench:
    def __init__(self, house: Household, url: str) -> None:
        self.house = house
        self.orders = Orders()
        self.wake = Wake()
        self.ended = threading.Event()
        self.keeper = Keeper(house, parse(url), self.orders, self.wake, self.ended.set)

    def register(self) -> None:
        pool = make_pool(4)
        self.orders.registration = Registration(
            namespace(), 0, PoolFd(pool.fd), pool.num_bytes, (shard_pool(4),)
        )
        self.wake.set()

    def close(self, within_s: float = 5.0) -> None:
        self.orders.close_by_ns = time.monotonic_ns() + int(within_s * 1e9)
        self.wake.set()
        assert self.keeper.join(within_s + 5)
        assert self.ended.is_set()


def welcomed(visit: Visit) -> None:
    def step() -> bool:
        visit.turn(time.monotonic_ns(), None, None)
        return visit.is_welcome

    until(step)


@pytest.fixture
def house() -> Iterator[Household]:
    with zmq.Context() as context:
        yield household(context)


def test_joins_and_leaves_as_ordered(house: Household, short_dir: Path) -> None:
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        bench.close()
        assert bench.keeper.outcome.is_acknowledged
        assert house.membership.access is None


def test_a_fault_of_its_own_does_not_end_it(
    house: Household, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter(range(2))

    def faulty(*arguments: Any) -> Any:
        if next(faults, None) is not None:
            raise RuntimeError("a fault")
        return Visit(*arguments)

    monkeypatch.setattr(keeper_module, "Visit", faulty)
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        assert house.journal.counters()["keeper_faults"] == 2
        bench.close()


def test_pauses_grow_to_two_seconds_whoever_ended_the_stay(
    house: Household, short_dir: Path
) -> None:
    keeper = Bench(house, f"ipc://{short_dir}/nobody").keeper
    error = UnreachableError(ErrorCode.UNAVAILABLE, "nobody")
    now_ns, pauses = 10**12, []
    for _ in range(8):
        keeper._stay_ended(error, now_ns)
        pauses.append(keeper._retry_at_ns - now_ns)
        now_ns = keeper._retry_at_ns
    assert pauses[:3] == [PAUSE_FIRST_NS, 2 * PAUSE_FIRST_NS, 4 * PAUSE_FIRST_NS]
    assert pauses[-1] == PAUSE_LAST_NS
    with Responder(short_dir) as server:
        for _ in range(8):
            visit = Visit(house, 1, server.base + ".side", None)
            welcomed(visit)
            keeper._visit = visit
            keeper._stay_ended(error, now_ns)
        assert keeper._retry_at_ns - now_ns == PAUSE_LAST_NS
    keeper._joined_at_ns = now_ns
    keeper._stay_ended(error, now_ns + 10**10)
    assert keeper._retry_at_ns - now_ns - 10**10 == PAUSE_FIRST_NS


def test_it_sleeps_when_nothing_is_to_do(
    house: Household, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Responder(short_dir, heartbeat_s=60) as server:
        bench = Bench(house, server.url)
        turns: list[int] = []
        real = bench.keeper._turn

        def counted() -> None:
            turns.append(1)
            real()

        monkeypatch.setattr(bench.keeper, "_turn", counted)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        until(lambda: house.journal.counters().get("heartbeats"))
        time.sleep(0.05)  # the last replies are in
        before = len(turns)
        time.sleep(0.3)
        assert len(turns) - before <= 3
        bench.close()


def test_it_sleeps_while_nobody_is_there(house: Household, short_dir: Path) -> None:
    bench = Bench(house, f"ipc://{short_dir}/nobody")
    used_s = time.process_time()
    bench.keeper.start()
    until(lambda: house.journal.counters().get("approaches_failed", 0) >= 4)
    assert time.process_time() - used_s < 0.3
    started_s = time.monotonic()
    bench.close()
    assert time.monotonic() - started_s < 1
    assert bench.keeper.outcome.is_acknowledged


def test_close_ends_at_its_time(house: Household, short_dir: Path) -> None:
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        server.mute = set(Op)
        started_s = time.monotonic()
        bench.close(0.2)
        assert 0.15 < time.monotonic() - started_s < 1
        assert not bench.keeper.outcome.is_acknowledged

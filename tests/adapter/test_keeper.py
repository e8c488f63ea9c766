"""The thread that never gives up and never raises: pauses, faults, orders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from adapter import duties
from adapter import keeper as keeper_module
from adapter.enrolment import PoolFd, Registration
from adapter.household import Household
from adapter.keeper import PAUSE_FIRST_NS, PAUSE_LAST_NS, Keeper, Orders
from adapter.metadata import ConnectorMetadata
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


def closing(bench: Bench, within_s: float) -> None:
    bench.orders.close_by_ns = time.monotonic_ns() + int(within_s * 1e9)
    bench.wake.set()
    time.sleep(within_s + 0.2)


def test_a_pool_is_held_until_a_silent_server_acknowledges(
    house: Household, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "FAREWELL_S", 0.3)
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        server.mute = set(Op)
        used_s = time.process_time()
        closing(bench, 0.2)
        assert time.process_time() - used_s < 0.2
        assert not bench.keeper.outcome.is_over.is_set()
        assert not bench.ended.is_set()
        server.mute = set()
        assert bench.keeper.join(5)
        assert bench.keeper.outcome.is_acknowledged


def test_the_log_s_last_word_is_whether_there_is_a_server(
    house: Household,
    short_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper_module, "NEWS_EVERY_S", 1.5)
    monkeypatch.setattr(keeper_module, "GONE_NS", 0)
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        words = [record.getMessage() for record in caplog.records]
        return [
            name for word in words for name in ("registered at", "server is lost") if name in word
        ]

    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        until(lambda: len(said()) == 1)
    until(lambda: len(said()) == 2)
    with Responder(short_dir):
        until(lambda: len(said()) == 3)  # however soon after the first registration
    until(lambda: house.journal.counters().get("stays_ended") == 2)
    until(lambda: len(said()) == 4)  # too soon after the first loss to be said at once
    assert said() == ["registered at", "server is lost"] * 2
    assert house.journal.counters()["stays_ended"] == 2
    bench.close(0.1)


def test_a_pool_is_held_over_a_lost_connection_and_its_session_ended(
    house: Household, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "FAREWELL_S", 0.3)
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        server.mute = {Op.UNREGISTER}
        closing(bench, 0.1)
        server.drop_sides()
        until(lambda: house.journal.counters().get("stays_ended"))
        server.mute = set()
        assert bench.keeper.join(5)
        assert bench.keeper.outcome.is_acknowledged
        assert {body.session for body in server.bodies(Op.UNREGISTER)} == {1}
        assert len(server.bodies(Op.REGISTER_KV_CACHE)) == 1


def test_the_next_server_s_welcome_ends_the_wait_for_the_last_one(
    house: Household, short_dir: Path
) -> None:
    with Responder(short_dir) as first:
        bench = Bench(house, first.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        first.mute = {Op.UNREGISTER}
        closing(bench, 0.1)
    with Responder(short_dir) as second:
        assert bench.keeper.join(5)
        assert bench.keeper.outcome.is_acknowledged
        assert not second.seen or second.bodies(Op.REGISTER_KV_CACHE) == []


def test_a_server_that_stays_away_is_not_waited_for_for_ever(
    house: Household, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "GONE_NS", 300_000_000)
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        server.mute = {Op.UNREGISTER}
        closing(bench, 0.1)
    assert bench.keeper.join(5)
    assert not bench.keeper.outcome.is_acknowledged


def test_what_is_withdrawn_is_ended_when_it_is_loaded(house: Household, short_dir: Path) -> None:
    """The new side connection comes first: from then on the server offers nothing of it."""
    offers = house.formers._offers
    offers.lead()
    with Responder(short_dir) as server:
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        assert house.membership.wait(5) is not None
        offers.built(1, [server.epoch], [])
        bench.orders.registration = None
        bench.wake.set()
        until(lambda: len(server._sides) == 1 and house.membership.access is None)
        time.sleep(0.3)
        assert not server.bodies(Op.UNREGISTER)
        offers.begun(ConnectorMetadata(1))
        until(lambda: server.bodies(Op.UNREGISTER))
        assert [body.session for body in server.bodies(Op.UNREGISTER)] == [1]
        time.sleep(0.2)
        assert len(server.bodies(Op.REGISTER_KV_CACHE)) == 1
        bench.close()
        assert bench.keeper.outcome.is_acknowledged


def test_what_is_withdrawn_while_it_is_asked_for_is_ended_too(
    house: Household, short_dir: Path
) -> None:
    house.formers._offers.lead()
    with Responder(short_dir) as server:
        server.delay_s[Op.REGISTER_KV_CACHE] = 0.3
        bench = Bench(house, server.url)
        bench.keeper.start()
        bench.register()
        until(lambda: server.bodies(Op.REGISTER_KV_CACHE))
        bench.orders.registration = None
        bench.wake.set()
        until(lambda: server.bodies(Op.UNREGISTER))
        assert [body.session for body in server.bodies(Op.UNREGISTER)] == [1]
        bench.close()

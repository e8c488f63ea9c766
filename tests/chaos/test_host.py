"""The next server comes on the same endpoint and arena, its predecessor's copiers are gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.asking import stats
from tests.chaos.host import Server, Succession
from tests.chaos.stops import Stops
from tests.chaos.tally import Tally
from tests.wire.process import wait_until


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[Server]:
    made = Server(short_dir, shm_dir / "a", Tally(), Stops(), "256K")
    made.start()
    yield made
    made.end()
    made.join(40)
    assert not made.is_alive()


def follow(server: Server, number: int, arena: str = "4M") -> None:
    order = Succession(number, 0.0, arena)
    server.succeed(order)
    assert order.done.wait(60)
    assert server.now is not None, server.failure


def test_servers_follow_each_other(server: Server) -> None:
    follow(server, 0)
    first = server.now
    assert first is not None
    copier = server.copier()
    assert copier is not None
    follow(server, signal.SIGKILL, "2M")
    second = server.now
    assert second is not None
    assert second is not first
    assert first.gone_ns
    assert not second.gone_ns
    assert copier.wait_gone(0)
    assert stats(server.side, 5)["arena_bytes"] == 2 << 20
    follow(server, signal.SIGTERM)
    assert not second.grip.is_alive
    sums = server._tally.sums()
    counts = {n: sums[n] for n in ("server_kills", "server_ends", "server_starts")}
    assert counts == {"server_kills": 1, "server_ends": 1, "server_starts": 3}
    assert server._tally.troubles() == []
    assert server.processes_left() == 0


def test_a_tiers_porter_is_told_from_the_copier(short_dir: Path, shm_dir: Path) -> None:
    made = Server(
        short_dir, shm_dir / "a", Tally(), Stops(), "256K", l2=[f"disk:{short_dir}/t?size=16M"]
    )
    made.start()
    try:
        follow(made, 0)
        assert wait_until(lambda: made.porter() is not None and made.copier() is not None, 20)
        porter, copier = made.porter(), made.copier()
        assert porter is not None
        assert copier is not None
        assert porter.pid == stats(made.side, 5)["tier_disk_porter_pid"]
        assert copier.pid != porter.pid
        assert made.copier() is copier
    finally:
        made.end()
        made.join(40)
    assert made.processes_left() == 0
    assert made._tally.troubles() == []


def test_a_server_that_is_killed_while_it_starts(server: Server) -> None:
    follow(server, 0)
    order = Succession(signal.SIGKILL, 0.0, "4M", stillborn_s=0.05)
    server.succeed(order)
    assert order.done.wait(60)
    sums = server._tally.sums()
    assert (sums["server_kills"], sums["servers_killed_at_start"]) == (2, 1)
    assert server._tally.troubles() == []
    assert stats(server.side, 5)["arena_bytes"] == 4 << 20


def test_a_server_that_ended_by_itself_is_a_trouble(server: Server) -> None:
    follow(server, 0)
    assert server.now is not None
    server.now.grip.signal(signal.SIGABRT)
    assert server.now.grip.wait_gone(10)
    follow(server, signal.SIGKILL)
    (text,) = server._tally.troubles()
    assert "ended with -6 before it was hit with 9" in text
    assert server._tally.sums()["server_kills"] == 0


def test_a_server_that_does_not_start_ends_the_run(short_dir: Path) -> None:
    tally = Tally()
    server = Server(short_dir, Path("/proc/none/a"), tally, Stops(), "256K")
    server.start()
    order = Succession(0, 0.0, "4M")
    server.succeed(order)
    assert order.done.wait(60)
    assert server.now is None
    assert "arena-dir" in server.failure
    assert tally.num_troubles == 1
    server.join(20)


def test_log_lines_by_kind(short_dir: Path) -> None:
    server = Server(short_dir, short_dir, Tally(), Stops(), "1M")
    assert server.log_kinds() == {}
    server.log_path.write_text(
        "2026 WARNING kvkeep.server: copier_lost: x\n2026 INFO kvkeep.server: y\n"
        "2026 ERROR kvkeep.server: core_fault: z\nTraceback (most recent call last):\n"
        "2026 WARNING kvkeep.server: copier_lost: w\n"
    )
    assert server.log_kinds() == {
        "ERROR core_fault": 1,
        "Traceback": 1,
        "WARNING copier_lost": 2,
    }

"""B17: the server is replaced between two heartbeats; engines notice, go on, and come back unaided.

Nobody blocks meanwhile, what was promised is loaded, however late, and nothing of a former server
stays mapped: each later server hears so.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.membership import Joined
from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.adapter.rankrig import RankRig
from tests.wire.ports import free_port
from tests.wire.process import ServerProcess, wait_until

SIZES = ("--l1-size", "32M", "--extent-size", "4M")
PROMPT = tokens(30)
LATE_S = 12.0
"""More than the 10 s after which mappings of a former server were once given up."""


class Servers:
    """One place, one server after the other."""

    def __init__(self, folder: Path, arena: Path, url: str | None) -> None:
        self.folder, self.arena, self.url = folder, arena, url
        self.now = self.start()

    def start(self) -> ServerProcess:
        self.now = ServerProcess(self.folder, self.arena, *SIZES, url=self.url)
        return self.now

    def replace(self, end: Callable[[ServerProcess], Any] = ServerProcess.kill) -> None:
        end(self.now)
        self.start()


@pytest.fixture(params=["ipc", "tcp"])
def servers(request: pytest.FixtureRequest, short_dir: Path, shm_dir: Path) -> Iterator[Servers]:
    url = None if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    made = Servers(short_dir, shm_dir / "a", url)
    yield made
    made.now.kill()


@pytest.fixture
def ipc_servers(short_dir: Path, shm_dir: Path) -> Iterator[Servers]:
    made = Servers(short_dir, shm_dir / "a", None)
    yield made
    made.now.kill()


def rejoined(rig: EngineRig, before: list[Joined | None], limit_s: float = 10.0) -> None:
    """Runs requests until every rank is registered with another server, and something hits."""
    workers = rig.workers if isinstance(rig, RankRig) else [rig.worker]
    end_s = time.monotonic() + limit_s
    for worker, old in zip(workers, before, strict=True):
        link = worker.link
        assert link is not None
        while link.joined is None or (old is not None and link.joined.epoch == old.epoch):
            assert time.monotonic() < end_s, worker.counters()
            rig.run(tokens(21, seed=rig.next_id))
    while not rig.run(PROMPT).offered:
        assert time.monotonic() < end_s, rig.worker.counters()


def registrations(rig: EngineRig) -> list[Joined | None]:
    workers = rig.workers if isinstance(rig, RankRig) else [rig.worker]
    return [worker.link.joined for worker in workers if worker.link is not None]


def only_present_extents(rig: EngineRig) -> bool:
    """Each rank has extents of the present server mapped and no others."""
    rig.iterate(Output())
    workers = rig.workers if isinstance(rig, RankRig) else [rig.worker]
    for worker in workers:
        link = worker.link
        assert link is not None
        joined = link.joined
        if joined is None or not link.extents.has(joined.epoch):
            return False
        if {epoch for epoch, _ in list(link.extents._extents)} != {joined.epoch}:
            return False
    return True


@pytest.mark.sampled(2)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_b17_a_restart_within_a_heartbeat_is_noticed(
    servers: Servers, tmp_path: Path, num_ranks: int
) -> None:
    model = write_model(tmp_path / "m")
    rig = (
        EngineRig(servers.now.url, model)
        if num_ranks == 1
        else RankRig(servers.now.url, model, num_ranks)
    ).register()
    try:
        rig.run_saved(PROMPT)
        before = registrations(rig)
        rig.hook_s.clear()
        killed_s = time.monotonic()
        servers.replace()
        rejoined(rig, before)
        assert time.monotonic() - killed_s < 10
        assert wait_until(lambda: only_present_extents(rig), 10)
        assert wait_until(lambda: not rig.stats().get("parties_awaited"), 10), rig.stats()
        assert not [w for w in range(num_ranks) if registrations(rig)[w] is before[w]]
    finally:
        rig.close()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_b17_many_restarts_in_a_row(ipc_servers: Servers, tmp_path: Path, num_ranks: int) -> None:
    """Some of them while the engine had no time to join the one before."""
    model = write_model(tmp_path / "m")
    rig = (
        EngineRig(ipc_servers.now.url, model)
        if num_ranks == 1
        else RankRig(ipc_servers.now.url, model, num_ranks)
    ).register()
    try:
        rig.run_saved(PROMPT)
        for turn in range(5):
            before = registrations(rig)
            ipc_servers.replace(ServerProcess.terminate if turn % 2 else ServerProcess.kill)
            if turn % 3:
                rejoined(rig, before)
            rig.run(tokens(21, seed=turn))
        rejoined(rig, [None] * num_ranks)
        assert wait_until(lambda: only_present_extents(rig), 10)
        assert wait_until(lambda: not rig.stats().get("parties_awaited"), 10), rig.stats()
    finally:
        rig.close()


@pytest.mark.parametrize("accident", ["killed", "told to end"])
def test_b17_a_rank_late_after_a_restart_loads_what_was_promised(
    ipc_servers: Servers, tmp_path: Path, accident: str
) -> None:
    rig = RankRig(ipc_servers.now.url, write_model(tmp_path / "m"), 2).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28
        before = registrations(rig)

        def before_rank(rank: int) -> None:
            if rank == 0:
                return
            end = ServerProcess.kill if accident == "killed" else ServerProcess.terminate
            ipc_servers.replace(end)
            links = [worker.link for worker in rig.workers]

            def is_back() -> bool:
                return all(
                    link is not None and link.joined is not None and link.joined is not old
                    for link, old in zip(links, before, strict=True)
                )

            assert wait_until(is_back, 10)
            time.sleep(LATE_S if accident == "killed" else 1.0)

        checked = []

        def forward() -> None:
            rig.check(PROMPT, pages, offered // SIZE)
            checked.append(True)

        rig.before_rank = before_rank
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        rig.iterate(Output([report]), forward=forward)
        assert checked == [True]
        rig.before_rank = lambda rank: None
        rig.check_nothing_leased()
        assert wait_until(lambda: only_present_extents(rig), 10)
    finally:
        rig.close()


def test_b17_an_offer_in_the_queue_outlives_two_servers(
    ipc_servers: Servers, tmp_path: Path
) -> None:
    """It is promised and has pages, and is in no batch while two servers come and go."""
    rig = EngineRig(ipc_servers.now.url, write_model(tmp_path / "m")).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28
        for _ in range(2):
            before = registrations(rig)
            ipc_servers.replace()
            assert wait_until(lambda b=before: registrations(rig)[0] not in (None, *b), 10)
            for _ in range(5):
                rig.iterate(Output())
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        rig.iterate(Output([report]), forward=lambda: rig.check(PROMPT, pages, offered // SIZE))
        assert rig.worker.counters()["pages_loaded"] == 7
        assert wait_until(lambda: only_present_extents(rig), 10)
    finally:
        rig.close()


@pytest.mark.parametrize("loser", [0, 1])
def test_b17_a_lost_side_connection_is_mended_at_once_and_promises_are_kept(
    ipc_servers: Servers, tmp_path: Path, loser: int
) -> None:
    """The same server goes on: the old session is ended as soon as nothing is loaded under it."""
    rig = RankRig(ipc_servers.now.url, write_model(tmp_path / "m"), 2).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28
        link = rig.workers[loser].link
        assert link is not None
        visit = link._keeper._visit
        assert visit is not None
        visit._side._socket.shutdown(socket.SHUT_RDWR)
        assert wait_until(lambda: link.joined is None, 5)
        time.sleep(1)  # connected again, and waiting for the offer
        assert link.joined is None
        if loser:  # the leader still has a line to ask
            assert rig.stats()["pinned_slots"] == 14
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        rig.iterate(Output([report]), forward=lambda: rig.check(PROMPT, pages, offered // SIZE))

        def is_mended() -> bool:
            rig.iterate(Output())
            return link.joined is not None

        assert wait_until(is_mended, 3)
        assert wait_until(lambda: rig.run(PROMPT).offered == 28, 5)
        rig.check_nothing_leased()
    finally:
        rig.close()


def test_b17_nothing_is_held_of_servers_that_are_gone(ipc_servers: Servers, tmp_path: Path) -> None:
    """Mappings and threads are the same after six servers as after two."""
    rig = EngineRig(ipc_servers.now.url, write_model(tmp_path / "m")).register()
    counts = []
    try:
        rig.run_saved(PROMPT)
        for turn in range(6):
            before = registrations(rig)
            ipc_servers.replace()
            rejoined(rig, before)
            assert wait_until(lambda: only_present_extents(rig), 10)
            if turn in (1, 5):
                maps = Path("/proc/self/maps").read_text().count(str(ipc_servers.arena))
                counts.append((len(os.listdir("/proc/self/task")), maps))
        assert counts[0] == counts[1]
    finally:
        rig.close()

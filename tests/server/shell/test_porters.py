"""Porters as processes: started, told what they are, killed, stopped, refused, started again."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.ids import Epoch
from server.core.effects import JobId, TierHealth, TierId
from server.porter.wire import Answer, Kind, pack_answer
from server.shell import clock, parties
from server.shell.parties import Parties, Party, Surroundings
from server.shell.porters import PorterRole, Porters, porter_environment
from server.shell.reports import (
    PorterAnswered,
    PorterGone,
    PorterLost,
    PorterReady,
    PorterRefused,
    PorterStuck,
)
from server.tierspec import TierSpec, parse
from tests.faults.undying import Undying
from tests.server.porter.process import MODULE, spec
from tests.server.shell.reporting import Reports
from tests.wire.process import is_alive, wait_until

ZERO = TierId(0)
Start = Callable[..., Porters]


@pytest.fixture
def reports() -> Iterator[Reports]:
    with Reports() as made:
        yield made


@pytest.fixture
def start(reports: Reports) -> Iterator[Start]:
    made: list[Porters] = []

    def begin(*specs: TierSpec, kept: Parties | None = None) -> Porters:
        made.append(Porters(specs, reports.one_more, kept, MODULE))
        made[-1].start()
        return made[-1]

    yield begin
    for porters in made:
        porters.stop(10)
        for link in porters.links.values():
            link.detach()
        porters.close_reporters()
    for report in reports.queue:
        if isinstance(report, PorterReady):
            report.channel.close()


def ready(reports: Reports, porters: Porters, tier: TierId = ZERO) -> PorterReady:
    report = reports.wait_for(PorterReady)
    assert report.tier == tier
    porters.links[tier].take_over(report.channel, report.pid, clock.now_ns())
    return report


def test_one_that_is_killed_is_seen_dead_before_the_next_one_starts(
    reports: Reports, start: Start
) -> None:
    porters = start(spec("fine"))
    first = ready(reports, porters)
    assert (first.used_bytes, first.capacity_bytes) == (1, 2)
    assert porters.links[ZERO].start(TierHealth(ZERO, JobId(4)), clock.now_ns())
    answer = reports.wait_for(PorterAnswered).answer
    assert (answer.kind, answer.number) == (Kind.HEALTH, 4)
    os.kill(first.pid, signal.SIGKILL)
    reports.wait_for(PorterLost)
    assert not Path(f"/proc/{first.pid}").exists()
    porters.note_lost(ZERO)
    second = ready(reports, porters)
    assert second.pid != first.pid
    assert porters.figures() == {
        "tier_disk_porter_pid": second.pid,
        "tier_disk_porters_lost": 1,
        "tier_disk_open_refused": 0,
    }
    assert all(is_alive() for is_alive in porters.threads().values())
    assert porters.stop(10)
    assert not is_alive(second.pid)


def test_a_ledger_that_begins_at_nothing_is_said_and_one_that_was_there_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kvkeep.server")
    folder = tmp_path / "ledger"
    packet = pack_answer(Answer(Kind.READY, 0))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for url in (f"valkey://a:1?ledger={folder}", "valkey://a:1"):
            role = PorterRole(ZERO, parse(url))
            for _ in range(2):
                role.greet(ours)
                folder.mkdir(exist_ok=True)
                (folder / "store").touch()
                role.ready(packet, 1, ours)
    (line,) = caplog.messages
    assert line.startswith(f"ledger_new: valkey: ledger={folder} is new")


def test_one_that_is_stopped_is_killed_after_the_limit(reports: Reports, start: Start) -> None:
    porters = start(spec("fine"))
    first = ready(reports, porters)
    os.kill(first.pid, signal.SIGSTOP)
    link = porters.links[ZERO]
    begun_ns = clock.now_ns()
    link.start(TierHealth(ZERO, JobId(4)), begun_ns)
    assert link.deadline_ns() == begun_ns + 10 * clock.NS_PER_S
    assert not link.check(begun_ns + 9 * clock.NS_PER_S)
    assert link.check(begun_ns + 10 * clock.NS_PER_S)
    reports.wait_for(PorterLost)
    porters.note_lost(ZERO)
    assert ready(reports, porters).pid != first.pid


def test_one_that_does_not_die_is_stuck_and_written_down_until_its_end(
    reports: Reports, start: Start, shm_dir: Path
) -> None:
    (shm_dir / parties.FOLDER).mkdir()

    def written() -> list[tuple[str, int]]:
        found = parties.read(str(shm_dir)).values()
        return sorted((one.role, one.pid) for one in found if isinstance(one, Party))

    porters = start(spec("fine"), kept=Parties(str(shm_dir), Epoch(b"e" * 16), Surroundings.here()))
    first = ready(reports, porters)
    assert written() == [("porter", first.pid)]
    with Undying(first.pid) as held:
        first.channel.shutdown(socket.SHUT_RDWR)
        stuck = reports.wait_for(PorterStuck)
        assert (stuck.tier, stuck.pid, stuck.life) == (ZERO, first.pid, 1)
        porters.note_lost(ZERO)
        second = ready(reports, porters)
        assert written() == sorted([("porter", first.pid), ("porter", second.pid)])
        held.let_go()
        gone = reports.wait_for(PorterGone)
        assert (gone.tier, gone.life) == (ZERO, 1)
    assert written() == [("porter", second.pid)]
    assert porters.stop(10)
    assert written() == []


def test_a_tier_that_cannot_be_opened_is_tried_again_ever_less_often(
    reports: Reports, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "refuses").touch()
    porters = start(spec(str(tmp_path)[1:]), spec("fine", "&name=other"))
    seen: list[float] = []
    others = 0
    while len(seen) < 3:
        assert wait_until(lambda: len(reports.queue) > 0, 15)
        report = reports.queue.popleft()
        if isinstance(report, PorterReady):
            assert report.tier == 1
            others += 1
            porters.links[TierId(1)].take_over(report.channel, report.pid, 0)
            continue
        assert isinstance(report, PorterRefused)
        assert report.reason == "the tier is asleep"
        porters.note_refused(report.tier)
        seen.append(time.monotonic())
    assert seen[2] - seen[1] > 0.15
    assert porters.figures()["tier_disk_open_refused"] == 3
    (tmp_path / "refuses").unlink()
    while True:
        assert wait_until(lambda: len(reports.queue) > 0, 15)
        report = reports.queue.popleft()
        if isinstance(report, PorterReady):
            porters.links[report.tier].take_over(report.channel, report.pid, 0)
            others += 1
            if report.tier == ZERO:
                break
    assert others == 2


def test_what_a_tier_is_stands_in_no_process_list(
    reports: Reports, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    porters = start(spec("a-place"))
    pid = ready(reports, porters).pid
    line = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert MODULE.encode() in line
    assert b"a-place" not in line
    assert b"hunter2" not in line
    assert b"AWS_SECRET_ACCESS_KEY=hunter2" in Path(f"/proc/{pid}/environ").read_bytes()


def test_one_that_is_at_work_ends_with_the_server(reports: Reports, start: Start) -> None:
    porters = start(spec("fine"), spec("slow", "&name=slow"))
    both = [reports.wait_for(PorterReady) for _ in range(2)]
    for report in both:
        porters.links[report.tier].take_over(report.channel, report.pid, 0)
    pids = [report.pid for report in both]
    begun_s = time.monotonic()
    assert porters.stop(10)
    assert time.monotonic() - begun_s < 5
    assert not any(map(is_alive, pids))


def test_settling_waits_for_tiers_and_for_refusals_and_no_longer(
    reports: Reports, start: Start
) -> None:
    porters = start(spec("fine"), spec("refuses", "&name=cold"))
    begun_s = time.monotonic()
    porters.settle(20)
    assert time.monotonic() - begun_s < 15
    kinds = {type(report) for report in list(reports.queue)}
    assert kinds >= {PorterReady}
    begun_s = time.monotonic()
    Porters((spec("fine"),), lambda name: reports.reporter, None, MODULE).settle(0.3)
    assert 0.25 < time.monotonic() - begun_s < 5


def test_its_environment_finds_this_installation_first() -> None:
    own = porter_environment({"PYTHONPATH": "/mine", "HOME": "/x"})
    assert own["PYTHONPATH"].endswith(os.pathsep + "/mine")
    assert Path(own["PYTHONPATH"].split(os.pathsep)[0], "server", "porter").is_dir()
    assert (own["HOME"], own["OPENBLAS_NUM_THREADS"]) == ("/x", "1")
    assert "GLIBC_TUNABLES" not in porter_environment({})


def test_no_tiers_no_threads(reports: Reports) -> None:
    porters = Porters((), reports.one_more)
    porters.start()
    assert porters.figures() == {}
    assert porters.threads() == {}
    assert porters.stop(1)

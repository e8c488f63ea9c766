"""A copier's life: ready, answers, death, the next one."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.ids import Epoch
from server.copier.wire import Command, Kind, pack_command
from server.core.effects import HOST_COPIER
from server.shell import parties
from server.shell.keeper import MAX_STUCK
from server.shell.parties import Parties, Party, Surroundings
from server.shell.reports import (
    CopierAnswered,
    CopierGone,
    CopierLost,
    CopierReady,
    CopierStuck,
)
from server.shell.supervisor import Supervisor, child_environment, libc_name
from tests.faults.undying import Undying
from tests.server.shell.reporting import Reports
from tests.wire.process import is_alive, wait_until


@pytest.fixture
def reports() -> Iterator[Reports]:
    with Reports() as made:
        yield made


def test_it_restarts_what_dies_and_reports_in_order(reports: Reports) -> None:
    supervisor = Supervisor(HOST_COPIER, reports.reporter)
    supervisor.start()
    pids = []
    for _ in range(3):
        ready = reports.wait_for(CopierReady)
        pids.append(ready.pid)
        ready.channel.send(pack_command(Command(Kind.UNMAP_POOL, 12)))
        answer = reports.wait_for(CopierAnswered).answer
        assert (answer.kind, answer.number, answer.error) == (Kind.UNMAP_POOL, 12, None)
        os.kill(ready.pid, signal.SIGKILL)
        reports.wait_for(CopierLost)
        assert not Path(f"/proc/{ready.pid}").exists()  # dead and waited for
        ready.channel.close()
    assert len(set(pids)) == 3
    last = reports.wait_for(CopierReady)
    assert supervisor.stop(10)
    assert not is_alive(last.pid)
    reports.wait_for(CopierLost)
    last.channel.close()


def test_a_copier_is_written_down_from_before_it_is_told_of_until_it_is_dead(
    reports: Reports, shm_dir: Path
) -> None:
    (shm_dir / parties.FOLDER).mkdir()

    def written() -> list[int]:
        found = parties.read(str(shm_dir)).values()
        return [one.pid for one in found if isinstance(one, Party) and one.fingerprints is None]

    kept = Parties(str(shm_dir), Epoch(b"e" * 16), Surroundings.here())
    supervisor = Supervisor(HOST_COPIER, reports.reporter, parties=kept)
    supervisor.start()
    first = reports.wait_for(CopierReady)
    assert written() == [first.pid]
    with Undying(first.pid) as undying:
        first.channel.shutdown(socket.SHUT_RDWR)
        reports.wait_for(CopierStuck)
        second = reports.wait_for(CopierReady)
        assert sorted(written()) == sorted([first.pid, second.pid])
        undying.let_go()
        reports.wait_for(CopierGone)
    assert written() == [second.pid]
    assert supervisor.stop(10)
    assert written() == []
    for ready in (first, second):
        ready.channel.close()


def test_a_copier_that_talks_nonsense_is_replaced(reports: Reports, tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(
        "import os, socket, sys\n"
        "sys.path[:0] = os.environ['PYTHONPATH'].split(os.pathsep)\n"
        "from server.copier.wire import Answer, Kind, pack_answer\n"
        "s = socket.socket(fileno=int(sys.argv[1]))\n"
        "s.send(pack_answer(Answer(Kind.READY, 0, None))); s.send(b'nonsense'); s.recv(9)\n"
    )
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        supervisor = Supervisor(HOST_COPIER, reports.reporter, "talker")
        supervisor.start()
        for _ in range(2):
            ready = reports.wait_for(CopierReady)
            reports.wait_for(CopierLost)
            assert wait_until(lambda pid=ready.pid: not is_alive(pid))
            ready.channel.close()
        assert supervisor.stop(10)
    finally:
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old
    for report in reports.queue:
        if isinstance(report, CopierReady):
            report.channel.close()


def test_a_copier_that_does_not_die_is_reported_stuck_and_another_works(reports: Reports) -> None:
    supervisor = Supervisor(HOST_COPIER, reports.reporter)
    supervisor.start()
    first = reports.wait_for(CopierReady)
    with Undying(first.pid) as held:
        first.channel.shutdown(socket.SHUT_RDWR)  # as the loop does when it does not answer
        stuck = reports.wait_for(CopierStuck)
        assert (stuck.pid, stuck.life) == (first.pid, 1)
        second = reports.wait_for(CopierReady)
        second.channel.send(pack_command(Command(Kind.UNMAP_POOL, 12)))
        assert reports.wait_for(CopierAnswered).answer.number == 12
        assert is_alive(first.pid)
        held.let_go()
        assert reports.wait_for(CopierGone).life == 1
    # While none is stuck any more, the next end is an ordinary one.
    os.kill(second.pid, signal.SIGKILL)
    reports.wait_for(CopierLost)
    third = reports.wait_for(CopierReady)
    assert supervisor.stop(10)
    reports.wait_for(CopierLost)
    for ready in (first, second, third):
        ready.channel.close()


def test_too_many_stuck_copiers_are_not_joined_by_more(reports: Reports) -> None:
    supervisor = Supervisor(HOST_COPIER, reports.reporter)
    supervisor.start()
    channels, held = [], []
    try:
        for _ in range(MAX_STUCK):
            ready = reports.wait_for(CopierReady)
            channels.append(ready.channel)
            held.append(Undying(ready.pid))
            ready.channel.shutdown(socket.SHUT_RDWR)
            reports.wait_for(CopierStuck)
        assert not wait_until(lambda: len(reports.queue) > 0, 1.5)
        held[0].let_go()
        assert reports.wait_for(CopierGone).life == 1
        channels.append(reports.wait_for(CopierReady).channel)
        assert not supervisor.stop(10)  # one is left that may still touch memory
        reports.wait_for(CopierLost)
    finally:
        for one in held:
            one.__exit__()
        for left in supervisor._stuck:
            left.child.wait(10)
            os.close(left.pidfd)
        for channel in channels:
            channel.close()


def test_a_copier_that_cannot_start_is_tried_again_until_stopped(reports: Reports) -> None:
    supervisor = Supervisor(HOST_COPIER, reports.reporter, "server.copier.absent")
    supervisor.start()
    assert wait_until(lambda: supervisor._channel is not None)
    assert supervisor.stop(15)
    assert not reports.queue


def test_stopping_what_never_started_is_fine(reports: Reports) -> None:
    assert Supervisor(HOST_COPIER, reports.reporter).stop(1)


def test_the_store_tunable_is_set_where_it_is_read() -> None:
    own = child_environment({"PATH": "/bin"}, "x86_64", "glibc")
    assert own["GLIBC_TUNABLES"] == "glibc.cpu.x86_non_temporal_threshold=0x40000"
    assert own["PATH"] == "/bin"
    for machine, libc in (("aarch64", "glibc"), ("x86_64", "")):
        assert "GLIBC_TUNABLES" not in child_environment({}, machine, libc)


def test_a_running_copier_has_the_tunable(reports: Reports) -> None:
    supervisor = Supervisor(HOST_COPIER, reports.reporter)
    supervisor.start()
    ready = reports.wait_for(CopierReady)
    environ = Path(f"/proc/{ready.pid}/environ").read_bytes().split(b"\0")
    wanted = libc_name() == "glibc" and os.uname().machine == "x86_64"
    assert (b"GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=0x40000" in environ) == wanted
    assert supervisor.stop(10)
    ready.channel.close()


def test_other_tunables_and_paths_stay() -> None:
    environ = {
        "GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.cpu.x86_non_temporal_threshold=1",
        "PYTHONPATH": "/mine",
    }
    own = child_environment(environ, "x86_64", "glibc")
    assert own["GLIBC_TUNABLES"] == (
        "glibc.malloc.check=1:glibc.cpu.x86_non_temporal_threshold=0x40000"
    )
    assert own["PYTHONPATH"].endswith(os.pathsep + "/mine")
    assert environ["PYTHONPATH"] == "/mine"


def test_a_devices_copier_sees_that_device_only() -> None:
    own = child_environment({"CUDA_VISIBLE_DEVICES": "0,1"}, "x86_64", "glibc", bytes(range(16)))
    assert own["CUDA_VISIBLE_DEVICES"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    host = child_environment({"CUDA_VISIBLE_DEVICES": "0,1"}, "x86_64", "glibc")
    assert host["CUDA_VISIBLE_DEVICES"] == "0,1"

"""The porter as a process: obeys, answers once, is bounded, ends with its socket and its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server.core.tiers.parts import MAX_PARTS, Status
from server.porter import main as porter
from server.porter.notes import Notes, Warned
from server.porter.wire import Answer, Command, Kind, pack_command
from server.tierspec import to_json
from tests.server.porter.process import MODULE, PorterProcess, spec
from tests.server.porter.rows import PAGE, SPACE, key, memory, rows
from tests.wire.process import ROOT, is_alive, wait_until

SIZE = PAGE * 1025


def with_extent(child: PorterProcess, number: int = 1) -> memoryview:
    fd, mapped = memory(SIZE)
    command = Command(Kind.MAP_EXTENT, number, SIZE, PAGE)
    assert child.call(command, fd) == Answer(Kind.MAP_EXTENT, number)
    os.close(fd)
    return memoryview(mapped)


def test_puts_gets_forgets_and_ends_with_its_socket() -> None:
    with PorterProcess(spec("fine")) as child:
        assert child.ready.kind == Kind.READY
        assert child.ready.number == child.process.pid
        assert (child.ready.used_bytes, child.ready.capacity_bytes) == (1, 2)
        view = with_extent(child)
        view[:] = os.urandom(SIZE)
        before = bytes(view)
        put = Command(Kind.PUT, 5, fingerprint=SPACE, parts=rows([1, 2]))
        assert child.call(put) == Answer(Kind.PUT, 5, statuses=bytes(2))
        view[:] = bytes(SIZE)
        keys = key(1) + key(2) + key(3)
        probe = Command(Kind.PROBE, 6, fingerprint=SPACE, keys=keys, shards=1)
        assert child.call(probe) == Answer(Kind.PROBE, 6, count=2)
        get = Command(Kind.GET, 7, fingerprint=SPACE, parts=rows([1, 2, 3]))
        assert list(child.call(get).statuses) == [Status.OK, Status.OK, Status.ABSENT]
        assert view[PAGE : 2 * PAGE - 100] == before[PAGE : 2 * PAGE - 100]
        assert child.call(Command(Kind.CLEAR, 8, fingerprint=SPACE)) == Answer(Kind.CLEAR, 8)
        assert child.call(probe).count == 0
        health = child.call(Command(Kind.HEALTH, 9))
        assert (health.error, health.capacity_bytes) == (None, 2)
        assert child.call(Command(Kind.UNMAP_EXTENT, 1)) == Answer(Kind.UNMAP_EXTENT, 1)
        assert list(child.call(get).statuses) == [Status.ERROR] * 3
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        theirs = os.getpriority(os.PRIO_PROCESS, child.process.pid)
        assert theirs == min(19, ours + porter.NICENESS)
        child.channel.close()
        assert child.process.wait(10) == 0


@pytest.mark.parametrize(
    ("word", "told"), [("refuses", "the tier is asleep"), ("breaks", "RuntimeError in open")]
)
def test_a_tier_that_cannot_be_opened_is_told_in_one_line(word: str, told: str) -> None:
    with PorterProcess(spec(word)) as child:
        assert child.ready.kind == Kind.READY
        assert child.ready.error is not None
        assert told in child.ready.error
        assert "\n" not in child.ready.error
        assert child.process.wait(10) == 0
        assert child.process.stderr is not None
        assert "hunter2" not in child.process.stderr.read() + child.ready.error


def test_a_command_that_has_no_place_is_an_error() -> None:
    with PorterProcess(spec("fine")) as child:
        assert child.call(Command(Kind.CONFIGURE, 3)).error is not None
        answer = child.call(Command(Kind.MAP_EXTENT, 4, SIZE, PAGE))
        assert answer.number == 4
        assert answer.error is not None


def test_what_goes_wrong_is_told_for_the_log_no_more_than_once_a_second() -> None:
    with PorterProcess(spec("fails")) as child:
        with_extent(child)
        get = Command(Kind.GET, 5, fingerprint=SPACE, parts=rows([1]))
        begun_s = time.monotonic()
        notes = []
        while time.monotonic() - begun_s < 1.5:
            answer = child.call(get)
            while answer.kind == Kind.PROGRESS:
                notes.append(answer.error)
                answer = child.answer()
            assert list(answer.statuses) == [Status.ERROR]
        assert 1 <= len(notes) <= 3
        assert set(notes) == {"get: OSError: Input/output error"}


def test_it_leaves_its_end_to_the_server() -> None:
    with PorterProcess(spec("fine")) as child:
        for number in (signal.SIGTERM, signal.SIGINT):
            child.process.send_signal(number)
        assert child.call(Command(Kind.HEALTH, 1)).error is None
        child.channel.close()
        assert child.process.wait(10) == 0


def test_a_slow_job_shows_that_it_gets_on() -> None:
    with PorterProcess(spec("slow")) as child:
        with_extent(child)
        numbers = list(range(1, MAX_PARTS + 1))
        child.send(Command(Kind.PUT, 5, fingerprint=SPACE, parts=rows(numbers)))
        kinds = [child.answer().kind, child.answer().kind]
        assert kinds == [Kind.PROGRESS, Kind.PUT]


def test_what_waits_is_bounded() -> None:
    with PorterProcess(spec("hangs")) as child:
        with_extent(child)
        get = pack_command(Command(Kind.GET, 5, fingerprint=SPACE, parts=rows([1])))
        child.channel.setblocking(False)
        num_sent, full_s = 0, 0.0
        while num_sent < 10_000 and full_s < 1:
            try:
                child.channel.send(get)
                num_sent, full_s = num_sent + 1, 0.0
            except BlockingIOError:
                time.sleep(0.05)
                full_s += 0.05
        assert porter.MAX_JOBS <= num_sent < 3000
        with pytest.raises(BlockingIOError):
            child.channel.recv(100)
        status = Path(f"/proc/{child.process.pid}/status").read_text(encoding="utf-8")
        rss_kib = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(rss_kib.split()[1]) < 200_000


def test_questions_are_answered_and_extents_stay_while_jobs_hang() -> None:
    with PorterProcess(spec("hangs", "&concurrency=1")) as child:
        with_extent(child)
        for number in range(3):
            child.send(Command(Kind.GET, number, fingerprint=SPACE, parts=rows([1])))
        child.send(Command(Kind.UNMAP_EXTENT, 1))
        assert child.call(Command(Kind.HEALTH, 9)).number == 9
        assert child.call(Command(Kind.PROBE, 10, keys=key(1), shards=1)).number == 10
        begun_s = time.monotonic()
        child.channel.close()
        assert child.process.wait(10) == 0
        assert time.monotonic() - begun_s < porter.END_S + 3


def repeat(ask: Callable[[], None], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        ask()
        time.sleep(0.02)


def test_one_call_that_does_not_end_ends_the_porter_though_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVKEEP_TEST_CALL_S", "1.5")
    with PorterProcess(spec("hangs")) as child:
        with_extent(child)
        begun_s = time.monotonic()
        child.send(Command(Kind.GET, 5, fingerprint=SPACE, parts=rows([1])))
        notes = []

        def ask() -> None:
            answer = child.call(Command(Kind.HEALTH, 9))
            assert answer.kind in (Kind.HEALTH, Kind.PROGRESS)
            notes.extend([answer.error] * (answer.kind == Kind.PROGRESS))

        with pytest.raises((EOFError, BrokenPipeError)):
            repeat(ask, 10)
        assert 1.4 < time.monotonic() - begun_s < 10
        assert notes == ["a call of the tier does not end: this porter does"]


_PARENT = """
import os, socket, subprocess, sys
from tests.server.porter.process import MODULE, spec
from server.porter.wire import Command, Kind, pack_command
from server.tierspec import to_json
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = subprocess.Popen(
    [sys.executable, "-m", MODULE, str(b.fileno()), str(os.getpid())], pass_fds=(b.fileno(),)
)
a.send(pack_command(Command(Kind.CONFIGURE, 0, text=to_json(spec("hangs")))))
a.recv(300)
holder = subprocess.Popen(["sleep", "60"], pass_fds=(a.fileno(),))
print(child.pid, holder.pid, flush=True)
sys.stdin.read()
"""


def test_it_dies_with_its_parent_even_if_its_socket_lives_on() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid, holder = map(int, parent.stdout.readline().split())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert wait_until(lambda: not is_alive(pid))
    assert is_alive(holder)
    os.kill(holder, signal.SIGKILL)


def test_it_refuses_another_parent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-m", MODULE, str(theirs.fileno()), "1"],
            pass_fds=(theirs.fileno(),),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert done.returncode == 1


def test_a_server_that_goes_before_it_configures_is_no_fault() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.shutdown(socket.SHUT_RDWR)
        porter.serve(theirs, Notes())


def test_nothing_comes_before_configure() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(pack_command(Command(Kind.HEALTH, 1, text=to_json(spec("fine")))))
        assert porter.open_first(theirs, Warned()) is None
        assert b"before CONFIGURE" in ours.recv(1000)

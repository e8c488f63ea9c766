"""The nursery: jobs are forked from it with what they inherit, and it ends with its maker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.ranks.nursery import Nursery, tend
from adapter.conformance.host.ranks.wire import RankLostError, pair
from tests.wire.process import ROOT, is_alive, wait_until

pytestmark = pytest.mark.torch

TENDING = """
import os, sys
from adapter.conformance.host.ranks.nursery import tend
from adapter.conformance.host.ranks.wire import Wire
def launch(fds):
    print("a job speaks", flush=True)
    Wire.from_fd(fds[0], "maker").send((os.getpid(), os.getppid()), 5.0)
    return 0
sys.exit(tend(int(sys.argv[1]), launch))
"""


def test_jobs_are_forked_and_speak_into_their_file() -> None:
    import socket

    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, tempfile.TemporaryFile() as output:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", TENDING, str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        pids = []
        for _ in range(2):
            maker, job = pair("maker", "job")
            socket.send_fds(mine, [b"job"], [output.fileno(), job.fileno()])
            job.release()
            pid, parent = maker.receive(30.0)
            assert parent == process.pid
            pids.append(pid)
            maker.close()
        assert len(set(pids)) == 2
        assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 10)
        output.seek(0)
        assert output.read() == b"a job speaks\n" * 2
        mine.close()
        assert process.wait(10) == 0


def test_it_ends_with_its_maker_and_what_is_planted_then_is_refused() -> None:
    nursery = Nursery()
    assert nursery.is_usable
    nursery.close()
    nursery.close()
    with pytest.raises(RankLostError, match="nursery is gone"):
        nursery.plant([0])
    usable: bool = nursery.is_usable
    assert not usable
    assert callable(tend)


def test_no_nursery_is_left_by_a_process_that_was_killed() -> None:
    code = (
        "import sys\n"
        "from adapter.conformance.host.ranks.nursery import Nursery\n"
        "print(Nursery()._process.pid, flush=True); sys.stdin.readline()"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None
    pid = int(maker.stdout.readline())
    assert is_alive(pid)
    maker.kill()
    maker.communicate(timeout=20)
    assert wait_until(lambda: not is_alive(pid), 20)

"""The guard beside a real ROUTER: a message without end, strangers, and what is nobody's fault."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from protocol.endpoint import parse
from server.shell import connections, guard
from server.shell.complaints import Complaints
from server.shell.guard import Guard
from server.shell.heap import Heap
from tests.faults import rawzmtp
from tests.wire.process import ROOT, wait_until

MIB = 1 << 20
SLACK_BYTES = 24 * MIB


@pytest.fixture
def router(short_dir: Path) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.linger = 0
        made.bind(f"ipc://{short_dir}/s")
        yield made


@contextmanager
def guarding(folder: Path, known: dict[int, int], accounted_bytes: int = 0) -> Iterator[Guard]:
    made = Guard(
        parse(f"ipc://{folder}/s"),
        lambda: known,
        lambda: accounted_bytes,
        Complaints(),
        slack_bytes=SLACK_BYTES,
        max_strangers=16,
    )
    made.start()
    yield made
    assert made.is_alive()
    assert made.stop(5)
    assert not made.is_alive()


@contextmanager
def hoarder(folder: Path, frame_bytes: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.faults.rawzmtp", f"ipc://{folder}/s", str(frame_bytes)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.mark.parametrize("frame_bytes", [0, 100, 65_536])
def test_a_message_without_end_is_cut_and_a_bystander_is_not(
    short_dir: Path, router: zmq.Socket[bytes], frame_bytes: int
) -> None:
    known = {os.getpid(): 1}
    with guarding(short_dir, known) as watch, rawzmtp.greeted(f"ipc://{short_dir}/s") as healthy:
        highest, heap = 0, Heap()
        with hoarder(short_dir, frame_bytes) as child:
            assert child.stdout is not None
            for _ in range(3):  # once it is cut it comes back, and is cut again
                assert child.stdout.readline() == b"hoarding\n"
                assert child.stdout.readline() == b"cut\n"
                highest = max(highest, heap.resident_bytes())
            assert watch._suspects == {child.pid}
        assert wait_until(lambda: watch._complaints.counts()["hoarder_cut"] >= 3)
        assert highest < watch.limit_bytes() + 512 * MIB  # what comes within one interval
        assert "memory_unexplained" not in watch._complaints.counts()
        healthy.sendall(rawzmtp.frame(b"still here"))
        assert router.poll(10_000)
        assert router.recv_multipart()[1] == b"still here"

        def is_low() -> bool:
            heap.trim()
            return heap.resident_bytes() < watch.limit_bytes()

        assert wait_until(is_low)


def test_memory_that_no_connection_holds_costs_them_once(
    short_dir: Path, router: zmq.Socket[bytes]
) -> None:
    with guarding(short_dir, {os.getpid(): 1}) as watch:
        with rawzmtp.greeted(f"ipc://{short_dir}/s") as healthy:
            held = [b"x" * (64 << 10) for _ in range(2 * SLACK_BYTES >> 16)]
            assert healthy.recv(1) == b""  # cut, in vain
        assert wait_until(lambda: "memory_unexplained" in watch._complaints.counts())
        with rawzmtp.greeted(f"ipc://{short_dir}/s") as healthy:
            time.sleep(5 * guard.INTERVAL_S)
            healthy.sendall(rawzmtp.frame(b"again"))
            assert router.poll(10_000)
            assert router.recv_multipart()[1] == b"again"
        assert watch._complaints.counts()["memory_unexplained"] == 1
        assert len(held) > 0


def test_memory_that_is_accounted_for_costs_nobody(
    short_dir: Path, router: zmq.Socket[bytes]
) -> None:
    known = {os.getpid(): 1}
    with (
        guarding(short_dir, known, accounted_bytes=4 * SLACK_BYTES) as watch,
        rawzmtp.greeted(f"ipc://{short_dir}/s") as healthy,
    ):
        held = [b"x" * (64 << 10) for _ in range(2 * SLACK_BYTES >> 16)]
        time.sleep(5 * guard.INTERVAL_S)
        healthy.sendall(rawzmtp.frame(b"here"))
        assert router.poll(10_000)
        assert watch._complaints.counts() == {}
        assert len(held) > 0


def test_strangers_are_thinned_out_and_the_known_are_not(
    short_dir: Path, router: zmq.Socket[bytes]
) -> None:
    known: dict[int, int] = {}
    with guarding(short_dir, known) as watch, ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(rawzmtp.connect(f"ipc://{short_dir}/s"))
        endpoint = parse(f"ipc://{short_dir}/s")
        assert wait_until(lambda: "connections_bound" in watch._complaints.counts())
        # Growth by a quarter of what strangers may have is the reason to look again.
        assert wait_until(lambda: len(connections.find(endpoint)) <= 16 + 4)
    known[os.getpid()] = 1
    with guarding(short_dir, known) as watch, ExitStack() as stack:
        made = [stack.enter_context(rawzmtp.greeted(f"ipc://{short_dir}/s")) for _ in range(50)]
        time.sleep(5 * guard.INTERVAL_S)
        assert watch._complaints.counts() == {}
        more = [stack.enter_context(rawzmtp.greeted(f"ipc://{short_dir}/s")) for _ in range(50)]
        assert wait_until(lambda: "connections_bound" in watch._complaints.counts())
        most = guard.MAX_PER_PROCESS + 4
        assert wait_until(lambda: len(connections.find(endpoint)) <= most)
        assert made[0].recv(1) == b""  # the oldest go first
        more[-1].sendall(rawzmtp.frame(b"newest"))
        assert router.poll(10_000)


def test_what_the_gate_has_cut_and_zmq_not_closed_yet_hides_no_stranger_that_comes_then(
    short_dir: Path, router: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = parse(f"ipc://{short_dir}/s")
    watch = Guard(endpoint, dict, lambda: 0, Complaints(), slack_bytes=SLACK_BYTES, max_strangers=8)
    count, closing = connections.count_descriptors, [300]
    monkeypatch.setattr(
        connections, "count_descriptors", lambda: count() + (closing.pop() if closing else 0)
    )
    watch.look()
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(rawzmtp.greeted(f"ipc://{short_dir}/s"))
        watch.look()
        assert wait_until(lambda: len(connections.find(endpoint)) == 8)


def test_all_connections_together_are_bounded(
    short_dir: Path, router: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 20)  # fewer than one process may have
    with guarding(short_dir, {os.getpid(): 1}) as watch, ExitStack() as stack:
        made = [stack.enter_context(rawzmtp.greeted(f"ipc://{short_dir}/s")) for _ in range(40)]
        endpoint = parse(f"ipc://{short_dir}/s")
        assert wait_until(lambda: len(connections.find(endpoint)) <= 20 + 4)
        assert "connections_bound" in watch._complaints.counts()
        made[-1].sendall(rawzmtp.frame(b"newest"))
        assert router.poll(10_000)


def test_a_fault_of_its_own_does_not_end_it(short_dir: Path, router: zmq.Socket[bytes]) -> None:
    def broken() -> int:
        raise RuntimeError("accounts are closed")

    made = Guard(parse(f"ipc://{short_dir}/s"), dict, broken, Complaints())
    made.start()
    assert wait_until(lambda: made._complaints.counts().get("guard_fault", 0) >= 2)
    assert made.is_alive()
    assert made.stop(5)

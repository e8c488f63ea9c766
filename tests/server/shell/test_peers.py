"""The side socket with real processes and descriptors."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol import side
from protocol.errors import ErrorCode
from protocol.ids import ArenaId, Epoch
from server.core.effects import ProcessId
from server.shell import packets, peers
from server.shell.descriptors import Descriptor
from server.shell.peers import MAX_POOLS_PER_PEER, Drop, Forget, ForgetPool, SideSocket, Tell
from server.shell.reports import PoolOffered, ProcessExited, ProcessJoined, ProcessQuiet
from tests.server.shell.reporting import Reports
from tests.wire.client import SideClient, make_pool
from tests.wire.process import ROOT, wait_until

SILENCE_S = 0.3


@dataclass
class Side:
    path: str
    reports: Reports
    thread: SideSocket


@pytest.fixture
def sides(short_dir: Path) -> Iterator[Side]:
    with Reports() as reports:
        path = str(short_dir / "s")
        thread = SideSocket(
            path, "ipc:///e", Epoch(b"e" * 16), ArenaId(b"a" * 16), reports.reporter, SILENCE_S
        )
        thread.start()
        yield Side(path, reports, thread)
        assert thread.stop(5)
        assert not os.path.exists(path)


def join(sides: Side) -> tuple[SideClient, ProcessId]:
    client = SideClient(sides.path)
    welcome = client.hello(b"i" * 16)
    assert isinstance(welcome, side.Welcome)
    joined = sides.reports.wait_for(ProcessJoined)
    assert joined.instance == b"i" * 16
    assert joined.token == welcome.token
    assert (welcome.endpoint, welcome.epoch) == ("ipc:///e", b"e" * 16)
    return client, joined.process


def closed_with(client: SideClient) -> ErrorCode:
    answer, _ = client.receive()
    assert isinstance(answer, side.SideError), answer
    with pytest.raises((ConnectionError, OSError)):
        client.receive()
    client.close()
    return ErrorCode(answer.code)


def test_tokens_are_known_before_they_are_told_and_never_the_same(sides: Side) -> None:
    tokens = set()
    for _ in range(20):
        client = SideClient(sides.path)
        welcome = client.hello(b"i" * 16)
        assert isinstance(welcome, side.Welcome)
        # No wait: the report was posted before the answer was sent.
        assert any(
            isinstance(report, ProcessJoined) and report.token == welcome.token
            for report in list(sides.reports.queue)
        )
        tokens.add(welcome.token)
        client.close()
    assert len(tokens) == 20


def test_a_pool_is_passed_and_its_descriptor_is_the_receivers(sides: Side) -> None:
    client, process = join(sides)
    fd, view = make_pool(8192)
    view[:4] = 7
    answer = client.offer(b"p" * 16, fd, 8192)
    os.close(fd)
    assert answer == side.PoolAccepted(pool=b"p" * 16)
    offered = sides.reports.wait_for(PoolOffered)
    assert (offered.process, offered.pool, offered.size_bytes) == (process, b"p" * 16, 8192)
    assert os.pread(offered.descriptor.fd, 4, 0) == b"\7\7\7\7"
    offered.descriptor.give_back()
    client.close()


def test_wrong_pools_are_refused_and_the_connection_goes_on(sides: Side) -> None:
    client, process = join(sides)
    unsealed, _ = make_pool(8192, seals=0)
    good, _ = make_pool(8192)
    num_open = len(os.listdir("/proc/self/fd"))
    for fd, size in ((unsealed, 8192), (good, 8191), (good, 16384)):
        answer = client.offer(b"p" * 16, fd, size)
        assert isinstance(answer, side.SideError)
        assert answer.code == ErrorCode.POOL_INVALID
        assert answer.pool == b"p" * 16
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) == num_open)
    assert isinstance(client.offer(b"p" * 16, good, 8192), side.PoolAccepted)
    again = client.offer(b"p" * 16, good, 8192)
    assert isinstance(again, side.SideError)
    assert again.code == ErrorCode.DUPLICATE
    for number in range(1, MAX_POOLS_PER_PEER):
        pool = bytes([number]) * 16
        assert isinstance(client.offer(pool, good, 8192), side.PoolAccepted)
    many = client.offer(b"z" * 16, good, 8192)
    assert isinstance(many, side.SideError)
    assert many.code == ErrorCode.LIMIT_EXCEEDED
    sides.thread.tell(ForgetPool(process, sides.reports.wait_for(PoolOffered).pool))
    assert wait_until(lambda: isinstance(client.offer(b"p" * 16, good, 8192), side.PoolAccepted))
    for report in list(sides.reports.queue):
        if isinstance(report, PoolOffered):
            report.descriptor.give_back()
    os.close(unsealed)
    os.close(good)
    client.close()


@pytest.mark.parametrize(
    ("packet", "num_fds", "code"),
    [
        (b"\xc1", 0, ErrorCode.MALFORMED),
        (b"\x81\xa4type\xa4nope", 0, ErrorCode.MALFORMED),
        (bytes(4096), 0, ErrorCode.MALFORMED),
        (bytes(8000), 0, ErrorCode.TOO_LARGE),
        (side.pack(side.SideHello(major=1, minor=0, instance=b"i" * 16)), 0, ErrorCode.DUPLICATE),
        (
            side.pack(side.SideHello(major=1, minor=0, instance=b"i" * 16)),
            1,
            ErrorCode.NO_DESCRIPTORS,
        ),
        (side.pack(side.PoolOffer(pool=b"p" * 16, size_bytes=1)), 0, ErrorCode.NO_DESCRIPTORS),
        (side.pack(side.PoolOffer(pool=b"p" * 16, size_bytes=1)), 2, ErrorCode.NO_DESCRIPTORS),
        (side.pack(side.PoolOffer(pool=b"p" * 16, size_bytes=1)), 30, ErrorCode.NO_DESCRIPTORS),
    ],
)
def test_a_packet_that_breaks_the_rules_ends_its_connection_alone(
    sides: Side, packet: bytes, num_fds: int, code: ErrorCode
) -> None:
    other, _ = join(sides)
    client, process = join(sides)
    fd, _ = make_pool(4096)
    num_open = len(os.listdir("/proc/self/fd"))
    client.send(packet, [fd] * num_fds)
    assert closed_with(client) == code
    assert sides.reports.wait_for(ProcessQuiet).process == process
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= num_open)
    assert isinstance(other.offer(b"p" * 16, fd, 4096), side.PoolAccepted)
    sides.reports.wait_for(PoolOffered).descriptor.give_back()
    other.close()
    os.close(fd)


def test_strangers_are_refused_and_leave_nothing(sides: Side) -> None:
    first = SideClient(sides.path)
    first.send(side.pack(side.PoolOffer(pool=b"p" * 16, size_bytes=1)))
    assert closed_with(first) == ErrorCode.UNAUTHENTICATED
    second = SideClient(sides.path)
    answer = second.hello(b"i" * 16, major=2)
    assert isinstance(answer, side.SideError)
    assert answer.code == ErrorCode.VERSION_MISMATCH
    assert "1.0" in answer.message
    second.close()
    third = SideClient(sides.path)
    begun = time.monotonic()
    assert closed_with(third) == ErrorCode.DEADLINE_EXCEEDED
    assert time.monotonic() - begun >= SILENCE_S * 0.9
    assert not sides.reports.queue
    assert wait_until(lambda: not sides.thread._peers)


def test_the_oldest_that_says_nothing_makes_room_for_the_next(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MAX_SILENT", 3)
    with Reports() as reports:
        path, ids = str(short_dir / "s"), (Epoch(b"e" * 16), ArenaId(b"a" * 16))
        thread = SideSocket(path, "ipc:///e", *ids, reports.reporter, silence_limit_s=60)
        thread.start()
        try:
            polite = SideClient(path)
            assert isinstance(polite.hello(b"i" * 16), side.Welcome)
            silent = [SideClient(path) for _ in range(5)]
            assert [closed_with(one) for one in silent[:2]] == [ErrorCode.LIMIT_EXCEEDED] * 2
            for one in (*silent[2:], polite):  # who spoke is not counted among them
                if one is not polite:
                    assert isinstance(one.hello(b"j" * 16), side.Welcome)
                one.close()
        finally:
            assert thread.stop(5)


def test_the_end_of_a_connection_is_quiet_and_only_the_exit_is_an_exit(sides: Side) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.wire.client import SideClient\n"
        "c = SideClient(sys.argv[2]); c.hello(b'i' * 16)\n"
        "sys.stdin.readline(); c.close(); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT), sides.path], stdin=subprocess.PIPE
    )
    assert child.stdin is not None
    process = sides.reports.wait_for(ProcessJoined).process
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert sides.reports.wait_for(ProcessQuiet).process == process
    assert child.poll() is None
    assert not sides.reports.queue
    child.send_signal(signal.SIGKILL)
    assert sides.reports.wait_for(ProcessExited).process == process
    child.wait()
    child.stdin.close()
    assert wait_until(lambda: not sides.thread._peers)


def test_a_process_that_dies_before_its_hello_is_no_fault(sides: Side) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as kept:
        # The child connects; this process keeps the connection open, so that the exit is the
        # first that is seen of its end.
        script = (
            "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.connect(sys.argv[2])"
        )
        command = [sys.executable, "-c", script, str(kept.fileno()), sides.path]
        subprocess.run(command, pass_fds=[kept.fileno()], check=True, timeout=20)
        assert kept.recv(100) == b""
    assert wait_until(lambda: not sides.thread._peers)
    assert sides.thread._complaints.counts() == {}
    assert not sides.reports.queue


def test_a_quiet_process_is_forgotten_when_told_so_and_a_connected_one_never(sides: Side) -> None:
    client, process = join(sides)
    sides.thread.tell(Forget(process))
    fd, _ = make_pool(4096)
    assert isinstance(client.offer(b"p" * 16, fd, 4096), side.PoolAccepted)
    os.close(fd)
    sides.reports.wait_for(PoolOffered).descriptor.give_back()
    client.close()
    assert sides.reports.wait_for(ProcessQuiet).process == process
    assert process in sides.thread._peers
    sides.thread.tell(Forget(process))
    sides.thread.tell(Forget(process))
    assert wait_until(lambda: not sides.thread._peers)
    assert sides.thread._complaints.counts() == {}


def test_a_fault_over_one_peer_costs_that_peer_alone(
    sides: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = join(sides)
    client, process = join(sides)

    def fail(fd: int, size_bytes: int) -> None:
        raise RuntimeError("as asked")

    fd, _ = make_pool(4096)
    with monkeypatch.context() as patch:
        patch.setattr(packets, "check_pool_file", fail)
        client.send(side.pack(side.PoolOffer(pool=b"p" * 16, size_bytes=4096)), [fd])
        with pytest.raises(ConnectionError):
            client.receive()
    assert sides.reports.wait_for(ProcessQuiet).process == process
    assert sides.thread._complaints.counts() == {"side_fault": 1}
    assert sides.thread.is_alive()
    assert isinstance(other.offer(b"p" * 16, fd, 4096), side.PoolAccepted)
    sides.reports.wait_for(PoolOffered).descriptor.give_back()
    os.close(fd)
    client.close()
    other.close()


def test_descriptors_are_passed_in_order_and_a_drop_ends_it(sides: Side) -> None:
    client, process = join(sides)
    descriptor = Descriptor(os.memfd_create("x"))
    for number in range(1500):  # more than the socket holds at once
        packet = side.pack(side.ExtentTaken(session=1, extent=number))
        sides.thread.tell(Tell(process, packet, descriptor.borrow()))
    descriptor.give_back()
    for number in range(1500):
        answer, fds = client.receive()
        assert answer == side.ExtentTaken(session=1, extent=number)
        [fd] = fds
        os.close(fd)
    assert wait_until(lambda: not descriptor.is_open())
    error = side.pack(side.SideError(code=403, message="too much"))
    sides.thread.tell(Drop(process, error))
    assert closed_with(client) == ErrorCode.LIMIT_EXCEEDED
    assert sides.reports.wait_for(ProcessQuiet).process == process


def test_a_peer_that_reads_nothing_is_cut_off_and_its_queue_given_back(sides: Side) -> None:
    client, process = join(sides)
    descriptor = Descriptor(os.memfd_create("x"))
    packet = side.pack(side.ExtentTaken(session=1, extent=1))
    for _ in range(6000):
        sides.thread.tell(Tell(process, packet, descriptor.borrow()))
    assert sides.reports.wait_for(ProcessQuiet).process == process
    sides.thread.tell(Tell(process, packet, descriptor.borrow()))
    descriptor.give_back()
    assert wait_until(lambda: not descriptor.is_open())
    client.close()


def test_out_of_descriptors_it_lets_in_again_later(sides: Side) -> None:
    client = SideClient.__new__(SideClient)
    client.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.socket.settimeout(10)
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, old[1]))
        with pytest.raises(OSError, match="open files"):
            held.extend(os.memfd_create("x") for _ in range(highest + 9))
        client.socket.connect(sides.path)
        assert wait_until(lambda: sides.thread._door.closed_until_ns > 0)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    assert isinstance(client.hello(b"i" * 16), side.Welcome)
    client.close()


def test_commands_for_nobody_give_their_descriptor_back(sides: Side) -> None:
    descriptor = Descriptor(os.memfd_create("x"))
    sides.thread.tell(Tell(ProcessId(999), b"x", descriptor.borrow()))
    sides.thread.tell(Drop(ProcessId(999), b"x"))
    descriptor.give_back()
    assert wait_until(lambda: not descriptor.is_open())

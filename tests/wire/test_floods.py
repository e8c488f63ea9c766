"""Peers that take without end: memory and descriptors stay bounded, others are served.

Each kind against a real server, with an engine at work beside it. What is measured is what the
kernel says of the server's process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from protocol import limits
from protocol.errors import ErrorCode, ReplyError
from protocol.messages import (
    ChunkCountReply,
    Clear,
    Done,
    Heartbeat,
    HeartbeatReply,
    Lookup,
    Ping,
)
from protocol.namespace import fingerprint
from server.process import MIN_OPEN_FILES
from server.shell import door, guard
from tests.faults import rawzmtp
from tests.faults.bystander import Bystander, engaged, stats
from tests.wire import crowd
from tests.wire.client import Engine, SideClient, make_keys, make_namespace
from tests.wire.load import MIB, anon_bytes, child, num_descriptors, percentile, read_line, timed_ms
from tests.wire.process import ServerProcess, wait_until

GAP_LIMIT_S = 2.0
"""Longest time without service beside a hoarder, on two cores that others use, too."""


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    sizes = ("--l1-size", "64M", "--extent-size", "1M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as process:
        yield process
        assert process.process.poll() is None
        assert "Traceback" not in process.log(), process.log()


@pytest.fixture
def bystander(server: ServerProcess) -> Iterator[Bystander]:
    made = Bystander(server)
    yield made
    made.close()


class Sampler(threading.Thread):
    """Keeps the highest private memory of a process, every 10 ms."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self._over = threading.Event()
        self.highest_bytes = anon_bytes(pid)

    def run(self) -> None:
        while not self._over.wait(0.01):
            self.highest_bytes = max(self.highest_bytes, anon_bytes(self._pid))

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def longest_gap_s(url: str, during_s: float) -> float:
    """The longest time without an answer, for one who asks again and again and connects anew."""
    gap_s, served_s, end_s = 0.0, time.monotonic(), time.monotonic() + during_s
    with zmq.Context() as context:
        while time.monotonic() < end_s:
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.connect(url)
                while time.monotonic() < end_s:
                    dealer.send(b"?")  # answered with an error, which is an answer
                    if not dealer.poll(300):
                        break
                    dealer.recv()
                    gap_s, served_s = max(gap_s, time.monotonic() - served_s), time.monotonic()
                    time.sleep(0.002)
    return max(gap_s, time.monotonic() - served_s)


def wait_for_hits(engine: Engine, keys: list[bytes], count: int) -> None:
    """Until an engine has mapped what it saved."""

    def are_there() -> bool:
        engine.pump()
        return engine.lookup(keys).ready >= count

    assert wait_until(are_there)


@pytest.mark.parametrize("frame_bytes", [1, 65_536])
def test_a_message_without_end(
    server: ServerProcess, bystander: Bystander, frame_bytes: int
) -> None:
    """Whoever sends it is cut again and again; an engine beside it keeps its connection."""
    before_bytes = anon_bytes(server.pid)
    with Sampler(server.pid) as sampler:
        with child("-m", "tests.faults.rawzmtp", server.url, str(frame_bytes)) as hoarder:
            assert read_line(hoarder) == "hoarding"
            gap_s = longest_gap_s(server.url, 4.0)
            assert read_line(hoarder) == "cut"
        bystander.check()
    told = stats(bystander.engine)
    assert gap_s < GAP_LIMIT_S
    assert told["complaint_hoarder_cut"] >= 1
    assert told.get("complaint_memory_unexplained", 0) == 0
    # Beyond the bound there is only what comes in while the guard is not looking.
    assert sampler.highest_bytes - before_bytes < 6 * guard.SLACK_BYTES
    assert wait_until(lambda: anon_bytes(server.pid) - before_bytes < guard.SLACK_BYTES + 8 * MIB)


def test_messages_of_many_frames_that_do_end(server: ServerProcess, bystander: Bystander) -> None:
    before_bytes = anon_bytes(server.pid)
    piece = rawzmtp.frame(b"x", more=True) * 20_000
    with rawzmtp.greeted(server.url) as one:
        for _ in range(3):
            for _ in range(15):
                one.sendall(piece)
            one.sendall(rawzmtp.frame(b"end"))
            assert one.recv(4096)  # the refusal
            bystander.check()
    assert stats(bystander.engine)["complaint_frames"] == 3
    assert wait_until(lambda: anon_bytes(server.pid) - before_bytes < guard.SLACK_BYTES)


@pytest.mark.parametrize("kind", ["silent", "half", "idle", "slow"])
def test_two_thousand_connections_that_say_nothing(
    server: ServerProcess, bystander: Bystander, kind: str
) -> None:
    memory, files = anon_bytes(server.pid), num_descriptors(server.pid)
    with child("-m", "tests.wire.crowd", kind, server.url, "2000") as crowd:
        word, count = read_line(crowd).split()
        assert (word, int(count) > 1500) == ("ready", True)
        bystander.check()
        with engaged(server, make_namespace(model=f"late/{kind}")) as late:
            assert late.save(make_keys(1, 4), [0, 1, 2, 3]) == 4
        # The guard looks again when a quarter of what strangers may have has come.
        most = files + guard.MAX_STRANGERS * 5 // 4 + 80
        assert wait_until(lambda: num_descriptors(server.pid) < most)
        assert anon_bytes(server.pid) - memory < 64 * MIB
    assert wait_until(lambda: num_descriptors(server.pid) <= files + 4)
    bystander.check()


def test_connections_faster_than_they_can_be_cut(short_dir: Path, shm_dir: Path) -> None:
    """libzmq aborts a process that has no descriptor left for a connection over ipc."""
    few = ("prlimit", f"--nofile={MIN_OPEN_FILES}:{MIN_OPEN_FILES}")
    sizes = ("--l1-size", "64M", "--extent-size", "1M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes, prefix=few) as server:
        with engaged(server, make_namespace(model="few")) as engine:
            with child("-m", "tests.wire.crowd", "silent", server.url, "8000") as crowd:
                assert read_line(crowd).startswith("ready")
                assert server.process.poll() is None, server.log()
                engine.wire.call(Ping(), Done)
            assert engine.save(make_keys(1, 4), [0, 1, 2, 3]) == 4
        assert server.process.poll() is None


@pytest.mark.parametrize("kind", ["side", "hello"])
def test_a_thousand_side_connections_of_one_process(
    server: ServerProcess, bystander: Bystander, kind: str
) -> None:
    memory, files = anon_bytes(server.pid), num_descriptors(server.pid)
    with child("-m", "tests.wire.crowd", kind, server.side_path, "1024") as crowd:
        word, count = read_line(crowd).split()
        assert word == "ready"
        if kind == "hello":
            assert int(count) == door.MAX_PER_PROCESS
        assert num_descriptors(server.pid) - files <= 2 * door.MAX_PER_PROCESS + 8
        with engaged(server, make_namespace(model=f"late/{kind}")) as late:
            assert late.save(make_keys(1, 4), [0, 1, 2, 3]) == 4
        bystander.check()
        assert anon_bytes(server.pid) - memory < 16 * MIB
    assert wait_until(lambda: num_descriptors(server.pid) <= files + 4)
    assert wait_until(lambda: stats(bystander.engine)["processes"] == 1)


def test_half_closed_connections_are_ended(server: ServerProcess, bystander: Bystander) -> None:
    files = num_descriptors(server.pid)
    with ExitStack() as stack:
        for number in range(40):
            one = stack.enter_context(rawzmtp.greeted(server.url))
            if number % 2:
                one.sendall(rawzmtp.frame(b"?"))
            one.shutdown(1)
            sides = SideClient(server.side_path)
            stack.callback(sides.close)
            if number % 2:
                sides.hello(os.urandom(16))
            sides.socket.shutdown(1)
        assert wait_until(lambda: num_descriptors(server.pid) <= files + 4)
        bystander.check()
    assert wait_until(lambda: stats(bystander.engine)["processes"] == 1)


def test_frames_of_the_longest_length_from_peers_that_never_read(
    server: ServerProcess, bystander: Bystander
) -> None:
    before_bytes = anon_bytes(server.pid)
    longest = rawzmtp.frame(bytes(limits.MAX_FRAME_BYTES))
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            try:
                with rawzmtp.greeted(server.url) as one:
                    one.settimeout(1)
                    while not over.is_set():
                        one.sendall(longest)
            except OSError:
                time.sleep(0.01)

    floods = [threading.Thread(target=flood) for _ in range(8)]
    with Sampler(server.pid) as sampler:
        for one in floods:
            one.start()
        gap_s = longest_gap_s(server.url, 4.0)
        over.set()
        for one in floods:
            one.join()
    assert gap_s < GAP_LIMIT_S
    assert sampler.highest_bytes - before_bytes < 6 * guard.SLACK_BYTES
    assert wait_until(lambda: anon_bytes(server.pid) - before_bytes < guard.SLACK_BYTES)
    bystander.check()


def test_ten_thousand_requests_that_are_never_ended(
    server: ServerProcess, bystander: Bystander
) -> None:
    """B22's kind: LOOKUP, and then nothing. One engine's are bounded, and a HEARTBEAT ends them."""
    with engaged(server, make_namespace(model="abandons")) as engine:
        keys = make_keys(3, 8)
        assert engine.save(keys, list(range(8))) == 8
        wait_for_hits(engine, keys, 8)
        memory = []
        for _ in range(3):
            refused = 0
            for request in range(10_000):
                try:
                    engine.lookup(keys, request)
                except ReplyError as error:
                    refused += error.code == ErrorCode.LIMIT_EXCEEDED
            assert refused == 10_000 - limits.MAX_LIVE_REQUESTS
            assert stats(engine)["leases"] == limits.MAX_LIVE_REQUESTS
            bystander.check()
            beat = Heartbeat(session=engine.session, requests=b"")
            engine.wire.call(beat, HeartbeatReply)
            assert wait_until(lambda: stats(engine)["leases"] == 0)
            memory.append(anon_bytes(server.pid))
        assert memory[2] - memory[0] < 4 * MIB


ABANDONED = [
    pytest.param(3, 40, 1, id="one in each process"),
    # Ten thousand sessions in all, fifty in each process that ends.
    pytest.param(
        5, 2000, 50, id="ten thousand", marks=[pytest.mark.slow, pytest.mark.timeout(400)]
    ),
]


@pytest.mark.parametrize(("rounds", "count", "per_process"), ABANDONED)
def test_engines_that_die_without_a_word(
    server: ServerProcess, bystander: Bystander, rounds: int, count: int, per_process: int
) -> None:
    with engaged(server, make_namespace(model=crowd.MODEL)) as engine:
        keys = make_keys(crowd.SEED, crowd.NUM_KEYS)
        assert engine.save(keys, list(range(crowd.NUM_KEYS))) == crowd.NUM_KEYS
        files, memory = num_descriptors(server.pid), []
        for _ in range(rounds):
            arguments = ("die", server.url, server.side_path, str(count), str(per_process))
            with child("-m", "tests.wire.crowd", *arguments) as dying:
                assert read_line(dying) == f"ready {count}"
            assert wait_until(lambda: stats(engine)["processes"] == 2)
            assert wait_until(lambda: num_descriptors(server.pid) <= files + 4)
            now = stats(engine)
            for name in ("leases", "pinned_slots", "stores", "slots_reserved"):
                assert now[name] == 0, name
            # The copier unmaps the last pool a moment later.
            assert wait_until(lambda: stats(engine)["sessions"] == 2)
            memory.append(anon_bytes(server.pid))
        assert memory[-1] - memory[0] < 4 * MIB, [one / MIB for one in memory]
        assert engine.lookup(keys).ready == crowd.NUM_KEYS
    bystander.check()


def test_namespaces_run_out(short_dir: Path, shm_dir: Path) -> None:
    sizes = ("--l1-size", "64M", "--extent-size", "64K")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as server:
        bystander = Bystander(server)
        made = 0
        code = None
        while code is None and made < 300:
            space = make_namespace(model=f"one of many {made}", page_bytes=4096)
            try:
                with engaged(server, space, num_pages=2) as engine:
                    assert engine.save(make_keys(made, 1), [0]) == 1
                made += 1
            except ReplyError as error:
                code = error.code
        assert code == ErrorCode.LIMIT_EXCEEDED
        assert made == 255  # the bystander's is the 256th
        assert anon_bytes(server.pid) < 120 * MIB
        bystander.check()
        first = make_namespace(model="one of many 0", page_bytes=4096)
        with engaged(server, first, num_pages=2) as engine:
            clear = Clear(fingerprint=fingerprint(first))
            assert engine.wire.call(clear, ChunkCountReply).chunks == 1
        with engaged(server, make_namespace(model="one more", page_bytes=4096)) as engine:
            assert engine.save(make_keys(7, 1), [0]) == 1
        bystander.close()


def test_noise_does_not_fill_the_log(server: ServerProcess, bystander: Bystander) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(rawzmtp.greeted(server.url))
        for number in range(3000):
            one.sendall(rawzmtp.frame(b"x" * 2000, more=True) + rawzmtp.frame(b"y"))
            one.recv(4096)
            if number % 10 == 0:
                client = SideClient(server.side_path)
                client.send(b"\xc1" * 3000)
                client.close()
    bystander.check()
    assert len(server.log()) < 8192
    told = stats(bystander.engine)
    assert told["complaint_frames"] == 3000
    assert told["complaint_side_refused"] >= 290


def test_no_is_a_fast_answer(server: ServerProcess) -> None:
    """Sixteen engines whose chunks are all pinned ask for more; a no takes milliseconds."""
    with ExitStack() as stack:
        spaces = [make_namespace(model=f"full/{number}") for number in range(16)]
        engines = [stack.enter_context(engaged(server, one, num_pages=256)) for one in spaces]
        for number, engine in enumerate(engines):
            keys = make_keys(number, 256)
            wait_for_hits(engine, keys, engine.save(keys, list(range(256))))
            found = engine.lookup(keys, 1)
            engine.read(found.lease, found.ready)  # pinned from here on
        refused_ms: list[float] = []
        for number in range(400):
            engine = engines[number % 16]
            begun_s = time.perf_counter()
            _, reply = engine.store(make_keys(10_000 + number, 8), list(range(8)))
            if reply.copied == 0:
                refused_ms.append((time.perf_counter() - begun_s) * 1000)
        assert len(refused_ms) > 300
        assert percentile(refused_ms, 0.99) < 50


def test_one_request_too_many_is_told_at_once(server: ServerProcess) -> None:
    with engaged(server, make_namespace(model="impatient")) as engine:
        keys = make_keys(9, 16_384)
        body = Lookup(session=engine.session, request=1, start=0, keys=b"".join(keys))
        busy = 0
        for _ in range(20):
            seqs = [engine.wire.submit(body) for _ in range(200)]
            for seq in seqs:
                error = engine.wire.reply(seq).error
                busy += error is not None and error.code == ErrorCode.BUSY
            took_ms = timed_ms(lambda: engine.wire.call(Ping(), Done))
            assert took_ms < 1000
        assert stats(engine)["replies_owed"] <= 1
        assert busy == stats(engine).get("error_busy", busy)

"""What peers of a whole server may send, and how they come and go: garbage harms nobody (B47)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
import zmq

from protocol import frames, limits, side
from protocol.errors import ErrorCode
from protocol.messages import Done, Ping, Stats, StatsReply
from tests.wire.client import Engine, SideClient
from tests.wire.process import (
    ROOT,
    ServerProcess,
    rss_bytes,
    wait_until,
)


def raw_ipc(url: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(url.removeprefix("ipc://"))
    return connection


def greeting(mechanism: bytes = b"NULL") -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def dealer_ready() -> bytes:
    body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    return b"\x04" + bytes([len(body)]) + body


GARBAGE = {
    "random": os.urandom(4096),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(1 << 16),
    "a frame of 2**63 bytes": greeting() + dealer_ready() + b"\x02\x7f" + b"\xff" * 7,
    "a frame of 4 GiB": greeting() + dealer_ready() + b"\x02\0\0\0\1\0\0\0\0" + bytes(100),
    "unknown mechanism": greeting(b"GSSAPI"),
}


def pickle_payload() -> bytes:
    """What a careless server would run: os.system, spelled out in protocol 0."""
    return b"cos\nsystem\n(S'touch pwned'\ntR."


def test_b47_raw_bytes_harm_nobody(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine:
        for garbage in GARBAGE.values():
            for _ in range(3):
                with raw_ipc(server.url) as connection:
                    try:
                        connection.sendall(garbage)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass
                    except OSError:
                        pass  # cut off in the middle of it: fine
            engine.wire.call(Ping(), Done)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "said",
    [b"\x01\x00", b"\xff" + bytes(8) + b"\x7f\x01\x05" + b"\x00\x00" + b"\x00\x02hi"],
    ids=["zmtp 1", "zmtp 2"],
)
def test_b47_peers_of_old_versions_of_zmq_are_hung_up_on_and_cost_nothing(
    server: ServerProcess, said: bytes
) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            with raw_ipc(server.url) as connection:
                try:
                    connection.sendall(said)
                    while connection.recv(64):
                        pass
                except ConnectionError:
                    pass

    come_and_go(500)
    before_bytes = rss_bytes(server.pid)
    come_and_go(3000)
    assert rss_bytes(server.pid) - before_bytes < 512 << 10  # libzmq lost more than a megabyte


def test_b47_connections_that_go_by_the_same_name_cost_nothing(server: ServerProcess) -> None:
    name = b"\x08Identity\x00\x00\x00\x04same"
    body = dealer_ready()[2:] + name
    said = greeting() + b"\x04" + bytes([len(body)]) + body

    def enter(connection: socket.socket) -> None:
        connection.sendall(said)
        got = b""
        while len(got) < 70:  # its greeting, and a part of its READY
            got += connection.recv(256)

    def come_and_go(times: int) -> None:
        for _ in range(times):
            with raw_ipc(server.url) as connection:
                enter(connection)

    with raw_ipc(server.url) as first:
        enter(first)
        come_and_go(300)
        before_bytes = rss_bytes(server.pid)
        come_and_go(700)
        assert rss_bytes(server.pid) - before_bytes < 1 << 20  # it was 11 KiB for each


def test_b47_frames_that_are_no_requests_get_typed_answers(server: ServerProcess) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(server.url)
        cases: list[tuple[list[bytes], ErrorCode]] = [
            ([b""], ErrorCode.MALFORMED),
            ([os.urandom(300)], ErrorCode.MALFORMED),
            ([pickle_payload()], ErrorCode.MALFORMED),
            ([b"\xdd\xff\xff\xff\xff"], ErrorCode.MALFORMED),
            ([b"", b"second"], ErrorCode.MALFORMED),
            ([b"x"] * 50, ErrorCode.MALFORMED),
            ([b"\x91" * 100_000], ErrorCode.MALFORMED),
            ([frames.pack_request(Ping(), 7)], ErrorCode.UNAUTHENTICATED),
        ]
        for parts, code in cases:
            dealer.send_multipart(parts)
            assert dealer.poll(10_000), parts
            error = frames.unpack_reply(dealer.recv()).error
            assert error is not None
            assert error.code == code, parts
    assert "Traceback" not in server.log()


def test_b47_an_own_routing_id_is_not_served(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine, zmq.Context() as context:
        for name in (b"kvkeep-signals", b"kvkeep-side", b"x"):
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.routing_id = name
                dealer.connect(server.url)
                dealer.send(b"")
                dealer.send(frames.pack_request(Ping(), 1))
                assert not dealer.poll(200)
        engine.wire.call(Ping(), Done)
    assert server.process.poll() is None


def test_b47_memory_stays_flat_under_garbage(server: ServerProcess) -> None:
    blob = os.urandom(16 << 20)

    def burst() -> None:
        for _ in range(8):
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.connect(server.url)
                for _ in range(20):
                    dealer.send(os.urandom(50_000))
                    assert dealer.poll(10_000)
                    dealer.recv()
                dealer.send(blob)  # beyond the limit: the connection is cut
                assert not dealer.poll(100)

    with Engine(server.url, server.side_path) as engine:
        burst()
        before = rss_bytes(server.pid)
        for _ in range(3):
            burst()
        engine.wire.call(Ping(), Done)
        assert rss_bytes(server.pid) - before < 4 << 20


def test_a_peer_that_does_not_read_is_dropped_alone(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine:
        with zmq.Context() as context, context.socket(zmq.DEALER) as deaf:
            deaf.linger = 0
            deaf.rcvhwm = 1
            deaf.connect(server.url)
            frame = b"\xc1" * 1000
            for _ in range(20_000):
                try:
                    deaf.send(frame, zmq.NOBLOCK)
                except zmq.Again:
                    engine.wire.call(Ping(), Done)
            engine.wire.call(Ping(), Done)
        engine.wire.call(Ping(), Done)
        assert rss_bytes(server.pid) < 90 << 20


def test_frames_up_to_the_limit_are_read(server: ServerProcess) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(server.url)
        dealer.send(bytes(limits.MAX_FRAME_BYTES))
        assert dealer.poll(10_000)
        assert frames.unpack_reply(dealer.recv()).error is not None


def test_connecting_again_and_again_uses_up_nothing(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine:
        welcomes = refusals = 0
        while welcomes < 1100:  # more than the processes that may be connected
            client = SideClient(server.side_path)
            try:
                answer = client.hello(os.urandom(16))
                is_in = isinstance(answer, side.Welcome)
                assert is_in or (isinstance(answer, side.SideError) and answer.code == 403), answer
            except ConnectionError:
                is_in = False
            finally:
                client.close()
            welcomes += is_in
            if not is_in:  # on a busy machine the last 64 may not be forgotten yet
                refusals += 1
                assert refusals < 300
                time.sleep(0.05)

        def is_alone() -> bool:
            return engine.wire.call(Stats(), StatsReply).values["processes"] == 1

        assert wait_until(is_alone)
        assert wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < 100)
    assert refusals or server.log() == ""


def test_a_process_that_ends_is_forgotten(server: ServerProcess) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.wire.client import SideClient\n"
        "import os; c = SideClient(sys.argv[2]); c.hello(os.urandom(16)); print('in', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with Engine(server.url, server.side_path) as engine:

        def processes() -> int:
            return engine.wire.call(Stats(), StatsReply).values["processes"]

        child = subprocess.Popen(
            [sys.executable, "-c", script, str(ROOT), server.side_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"in\n"
        assert processes() == 2
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
        assert wait_until(lambda: processes() == 1)
        # This one still runs, but has nothing here that its exit would free.
        quiet = SideClient(server.side_path)
        quiet.hello(os.urandom(16))
        quiet.close()
        assert wait_until(lambda: processes() == 1)

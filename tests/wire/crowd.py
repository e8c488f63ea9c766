"""A child process with thousands of connections that say nothing, or die without a word.

    python -m tests.wire.crowd side PATH COUNT      connect to the side socket, say nothing
    python -m tests.wire.crowd hello PATH COUNT     the same with SideHello
    python -m tests.wire.crowd silent URL COUNT     connect to the endpoint, say nothing
    python -m tests.wire.crowd half URL COUNT       send half of ZMQ's greeting
    python -m tests.wire.crowd idle URL COUNT       finish ZMQ's handshake, say nothing
    python -m tests.wire.crowd slow URL COUNT       announce a frame of a megabyte, send it by bytes
    python -m tests.wire.crowd die URL PATH COUNT   register, LOOKUP, die: COUNT engines
                                    [PER_PROCESS]   as many of them in each process, 1 unless told

Prints ``ready`` and a number, then stays until its stdin ends. Knows the wire client. Runs as a
child of a test.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable

from protocol.limits import MAX_FRAME_BYTES
from tests.faults import rawzmtp
from tests.wire.client import Engine, SideClient, make_keys, make_namespace

MODEL, SEED, NUM_KEYS = "crowd", 5, 8


def silent_side(path: str) -> socket.socket:
    """A side connection that says nothing."""
    return SideClient(path).socket


def greeting_side(path: str) -> socket.socket:
    """A side connection that says SideHello."""
    client = SideClient(path)
    client.hello(os.urandom(16))
    if client.welcome is None:
        raise ConnectionError("refused")
    return client.socket


def half(url: str) -> socket.socket:
    """Half of ZMQ's greeting."""
    made = rawzmtp.connect(url)
    made.sendall(rawzmtp.GREETING[:11])
    return made


def slow(url: str) -> socket.socket:
    """The head of a frame of a megabyte."""
    made = rawzmtp.greeted(url)
    made.sendall(struct.pack(">BQ", rawzmtp.LONG, MAX_FRAME_BYTES))
    return made


KINDS: dict[str, Callable[[str], socket.socket]] = {
    "side": silent_side,
    "hello": greeting_side,
    "silent": rawzmtp.connect,
    "half": half,
    "idle": rawzmtp.greeted,
    "slow": slow,
}


def stand(kind: str, where: str, count: int) -> None:
    """Opens connections, as many as it gets, and keeps them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    for _ in range(count):
        try:
            held.append(KINDS[kind](where))
        except (OSError, ConnectionError):
            time.sleep(0.001)
    print("ready", len(held), flush=True)
    if kind == "slow":
        os.set_blocking(0, False)
        while not _has_ended():
            for one in held:
                try:
                    one.send(b"x")
                except OSError:
                    pass
            time.sleep(0.01)
        return
    sys.stdin.read()


def _has_ended() -> bool:
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def die(url: str, path: str, count: int, per_process: int = 1) -> None:
    """Registers and leases in processes that end there."""
    done = 0
    for first in range(0, count, per_process):
        numbers = range(first, min(count, first + per_process))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                engines = [_leave_open(url, path, number) for number in numbers]
                code = 0 if len(engines) == len(numbers) else 1
            finally:
                os._exit(code)
        done += len(numbers) * (os.waitpid(pid, 0)[1] == 0)
    print("ready", done, flush=True)
    sys.stdin.read()


def _leave_open(url: str, path: str, number: int) -> Engine:
    """An engine with a lease; every other one has retrieved it, too."""
    engine = Engine(url, path, make_namespace(model=MODEL), num_pages=8)
    engine.register()
    found = engine.lookup(make_keys(SEED, NUM_KEYS), number)
    if number % 2:
        engine.read(found.lease, found.ready)
    return engine


if __name__ == "__main__":
    if sys.argv[1] == "die":
        die(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    else:
        stand(sys.argv[1], sys.argv[2], int(sys.argv[3]))

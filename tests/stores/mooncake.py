"""A real Mooncake cluster for tests: its master and nodes on loopback, with ways to hurt them.

The programs come from the package ``mooncake-transfer-engine-non-cuda``. Runs in the pytest
process; every program is ended by its own pid.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.interface import HEADER_BYTES, Name, Part, Tier
from tests.stores.parts import FINGERPRINT, PARENT, content, key
from tests.wire.ports import free_port

UP_LIMIT_S = 20.0
LEASE_MS = 1000
CLIENT_TTL_S = 3
"""After so long without a sign of life the master gives a node up."""


class Program:
    """One program of a cluster, which can be stopped, killed and started again with its ports."""

    def __init__(self, name: str, folder: Path, options: list[str]) -> None:
        found = importlib.util.find_spec("mooncake")
        assert found is not None
        assert found.submodule_search_locations
        self._command = [str(Path(found.submodule_search_locations[0]) / name), *options]
        self._log = folder / f"{name}-{time.monotonic_ns()}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, again if it ended."""
        environment = {**os.environ, "MC_TCP_BIND_ADDRESS": "127.0.0.1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._log.parent, env=environment
            )

    def stop(self) -> None:
        """SIGSTOP; returns when no thread of it runs any more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        until(lambda: all(_state(one) == "T" for one in threads.iterdir()), 10)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and waits for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


class Cluster:
    """A master and its nodes.

    Attributes:
        address: of the master, ``host:port``.
        master: its program.
        nodes: theirs.
    """

    def __init__(self, folder: Path, nodes: int, node_mib: int) -> None:
        port, self._web_port = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.master = Program(
            "mooncake_master",
            folder,
            [
                "--rpc_address=127.0.0.1",
                f"--rpc_port={port}",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={self._web_port}",
                f"--default_kv_lease_ttl={LEASE_MS}",
                f"--client_ttl={CLIENT_TTL_S}",
            ],
        )
        self.nodes: list[Program] = []
        try:
            until(lambda: "service_ready" in self._web("health"), UP_LIMIT_S)
            self.nodes.extend(self._node(folder, node_mib) for _ in range(nodes))
            self.wait_for_nodes(nodes)
        except BaseException:
            self.end()
            raise

    def wait_for_nodes(self, count: int) -> None:
        """Waits until the master knows so many."""
        until(lambda: self.known_nodes() == count, UP_LIMIT_S)

    def known_nodes(self) -> int:
        """Clients that lend memory, as the master counts them."""
        return int(self._figure("master_active_clients"))

    def _figure(self, name: str) -> float:
        for line in self._web("metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return -1.0

    def _web(self, path: str) -> str:
        try:
            url = f"http://127.0.0.1:{self._web_port}/{path}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def _node(self, folder: Path, size_mib: int) -> Program:
        return Program(
            "mooncake_client",
            folder,
            [
                f"--master_server_address={self.address}",
                "--host=127.0.0.1",
                "--protocol=tcp",
                f"--port={free_port()}",
                f"--global_segment_size={size_mib} MB",
                "--metadata_server=P2PHANDSHAKE",
            ],
        )

    def end(self) -> None:
        """Ends all of it."""
        for program in (*self.nodes, self.master):
            program.kill()


@contextmanager
def cluster(folder: Path, nodes: int = 1, node_mib: int = 64) -> Iterator[Cluster]:
    """A cluster for the time of a test."""
    made = Cluster(folder, nodes, node_mib)
    try:
        yield made
    finally:
        made.end()


def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Waits for something, and says how many seconds it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < limit_s, f"not within {limit_s} s"
        time.sleep(0.05)
    return time.monotonic() - begun


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


class Slots:
    """Memory of ours that a tier was told of, cut into slots, as an extent is.

    Args:
        tier: to be told.
        count: slots.
        slot_bytes: a multiple of 4096.
    """

    def __init__(self, tier: Tier, count: int = 64, slot_bytes: int = 65_536) -> None:
        raw = np.zeros(count * slot_bytes + 4096, np.uint8)
        skipped = -raw.ctypes.data % 4096
        self.memory = raw[skipped : skipped + count * slot_bytes]
        self._slot_bytes = slot_bytes
        self._count = count
        self._tier = tier
        tier.register(self.memory.ctypes.data, self.memory.size)

    def forget(self) -> None:
        """The tier is told that it goes."""
        self._tier.unregister(self.memory.ctypes.data, self.memory.size)

    def put(self, *numbers: int, heat: int = 0, fingerprint: bytes = FINGERPRINT) -> list[Status]:
        """Fills slots with the contents of such names, seals them and has them kept."""
        made = self.parts(*numbers, heat=heat, fingerprint=fingerprint)
        for one in made:
            one.payload[:] = content(one)
            values.seal(one, PARENT)
        return self._tier.batch_put(made)

    def get(self, *numbers: int, fingerprint: bytes = FINGERPRINT) -> list[Status]:
        """Gets values into zeroed slots; those that are OK have the right bytes."""
        self.memory[:] = 0
        made = self.parts(*numbers, fingerprint=fingerprint)
        statuses = self._tier.batch_get_into(made)
        assert len(statuses) == len(made)
        for at, (one, status) in enumerate(zip(made, statuses, strict=True)):
            if status is Status.OK:
                statuses[at] = values.check(one, PARENT)
                assert statuses[at] is not Status.OK or bytes(one.payload) == content(one)
        return statuses

    def parts(self, *numbers: int, heat: int = 0, fingerprint: bytes = FINGERPRINT) -> list[Part]:
        """The first slots, one for each name."""
        assert len(numbers) <= self._count
        return [
            Part(
                name=Name(fingerprint, key(number), 0),
                header=memoryview(bytearray(HEADER_BYTES)),
                room=self.memory[at * self._slot_bytes : (at + 1) * self._slot_bytes].data,
                payload_bytes=self._slot_bytes - 1000,
                address=self.memory.ctypes.data + at * self._slot_bytes,
                heat=heat,
            )
            for at, number in enumerate(numbers)
        ]

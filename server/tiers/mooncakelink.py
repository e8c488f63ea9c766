"""The client of a Mooncake tier: the library, its settings, its connection, registered memory.

Purpose: what the library would do by default is not fit for a cache that promises to be quick or
silent: it waits 30 seconds for a master and 60 for a node. Here its own time limits are set before
it is loaded. Must not know: values. Runs in: the porter; ``headers`` in its worker threads.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
import mmap
import os
import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol.extras import install
from server.tiers.interface import TierError
from server.tierspec import TierSpec

_log = logging.getLogger("kvkeep.porter")

SETTINGS = {
    "MC_RPC_TIMEOUT_MS": "3000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "1",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "2",
    "MC_TCP_STATUS_TIMEOUT_SEC": "2",
    "MC_TCP_LANES_PER_PEER": "16",
    "MC_LOG_LEVEL": "ERROR",
    "MC_STORE_CLIENT_METRIC": "0",
}
"""Variables of the library, for what the operator did not set: requests to the master, transfers
that do not move, and connections to one node, which are all taken by one that stands still. A
request to the master may take longer than the two seconds after which the server asks a tier no
more, so that a single one is enough for that."""

UNSAFE = "MC_SLICE_TIMEOUT"
"""With it the library reports transfers as failed that go on and write into memory."""

BLOCK_BYTES = 4096
"""Of headers: of one call under way."""

_BLOCK_WAIT_S = 1.0


def library(host: str) -> Any:
    """The client library, with its settings made.

    Args:
        host: of the master; when it is loopback, nothing of ours is told to others as an address of
            the network.

    Raises:
        TierError: it is not installed, or what it needs of the system is not.
    """
    if os.environ.pop(UNSAFE, None) is not None:
        _log.warning("mooncake: %s is not honoured: transfers would outlive their calls", UNSAFE)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if is_loopback(host):
        os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    try:
        return importlib.import_module("mooncake.store")
    except ModuleNotFoundError:
        raise TierError(
            f"mooncake: the package mooncake-transfer-engine-non-cuda is missing: "
            f"{install('mooncake')}"
        ) from None
    except ImportError as error:
        hint = ": apt-get install libibverbs1" if "libibverbs" in str(error) else ""
        raise TierError(f"mooncake: its library cannot be loaded: {error}{hint}") from None


def connect(module: Any, spec: TierSpec) -> Any:
    """A client of the master that a spec names.

    Args:
        module: the library.
        spec: of the kind ``mooncake``.

    Returns:
        The library's store. Takes up to some 5 seconds when the master does not answer.

    Raises:
        TierError: the master does not answer, or does not want us.
    """
    store = module.MooncakeDistributedStore()
    result = store.setup(
        spec.text("local_hostname") or own_address(*host_port(spec.location)),
        spec.text("metadata"),
        spec.number("segment"),
        spec.number("local_buffer"),
        spec.text("protocol"),
        spec.text("devices"),
        spec.location,
    )
    if result != 0:
        store.close()
        raise TierError(
            f"mooncake: no connection over {spec.text('protocol')} by way of the master at "
            f"{spec.location} (code {result})"
        )
    return store


def host_port(location: str) -> tuple[str, int]:
    """Splits ``host:port``; brackets of an IPv6 address are taken off."""
    host, _, port = location.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this one, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address(host: str, port: int) -> str:
    """The address by which nodes near the master reach this host.

    Args:
        host: of the master.
        port: of the master.

    Returns:
        An address of the interface on the way there. Nothing is sent: only the routes are asked.

    Raises:
        TierError: the master's name is unknown, or there is no way to it.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TierError(
            f"mooncake: the master at {host}:{port} cannot be reached: {error.strerror}"
        ) from None


@dataclass(frozen=True)
class Block:
    """Registered memory for the headers of one call.

    Attributes:
        data: uint8[BLOCK_BYTES], writable.
        address: of its first byte.
    """

    data: memoryview
    address: int


class Headers:
    """Blocks of memory that the library knows, each lent to one call at a time.

    Args:
        store: the library's; connected.
        count: calls at once.

    Raises:
        TierError: the memory cannot be registered.
    """

    def __init__(self, store: Any, count: int) -> None:
        self._memory = np.frombuffer(mmap.mmap(-1, count * BLOCK_BYTES), np.uint8)
        base = self._memory.ctypes.data
        register(store, base, count * BLOCK_BYTES)
        self._free: queue.SimpleQueue[Block] = queue.SimpleQueue()
        for at in range(0, count * BLOCK_BYTES, BLOCK_BYTES):
            self._free.put(Block(self._memory[at : at + BLOCK_BYTES].data, base + at))

    @contextmanager
    def lent(self) -> Iterator[Block]:
        """A block for the time of a call.

        Raises:
            TierError: all of them are lent for longer than a second.
        """
        try:
            block = self._free.get(timeout=_BLOCK_WAIT_S)
        except queue.Empty:
            raise TierError("mooncake: more calls at once than it was opened for") from None
        try:
            yield block
        finally:
            self._free.put(block)


def register(store: Any, address: int, size_bytes: int) -> None:
    """Tells the library of memory, so that a network card may read and write it.

    Raises:
        TierError: it will not have it.
    """
    result = store.register_buffer(address, size_bytes)
    if result != 0:
        raise TierError(f"mooncake: {size_bytes} bytes cannot be registered (code {result})")

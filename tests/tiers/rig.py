"""Servers with lower tiers behind a small L1, and an engine that fills them and checks each byte.

A chunk's bytes follow from its key, so whatever comes back is compared. Knows the wire and the
counters of STATS, nothing of the inside. Runs in the pytest process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import shake_128
from pathlib import Path

import numpy as np

from protocol import side
from protocol.limits import MAX_WAIT_MS
from protocol.messages import (
    Done,
    EndSession,
    LookupReply,
    QueryPrefetchStatus,
    Released,
    Unregister,
)
from server import asking
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

PAGE_BYTES = 16_384
L1_BYTES = 1 << 20
EXTENT_BYTES = 256 << 10
CHAIN = 16
"""Chunks of one chain."""

NUM_CHAINS = 16
"""Chains of a working set: four times what L1 has slots for."""

PATIENT = ("--promote-deadline", "30s")
STATS_S = 10.0
UP_S = 20.0

_TOLD = re.compile("tier_|miss_|pinned|promot|prefetch|evicted|extents|adopted|arena_|quiet")
"""Counters that say why something was not found, for whoever reads a failure."""

_LEFT: set[tuple[bytes, bytes]] = set()
"""Epoch and token of every engine of this process that left."""


def sizes(l1_bytes: int = L1_BYTES) -> tuple[str, ...]:
    """Options of a server with a small L1."""
    return ("--l1-size", str(l1_bytes), "--extent-size", str(EXTENT_BYTES))


def disk(folder: Path, size: str = "64M", **options: str) -> str:
    """The URL of a disk tier."""
    return f"disk:{folder}?size={size}" + "".join(f"&{k}={v}" for k, v in options.items())


def serve(
    folder: Path, arena_dir: Path, *l2: str, more: Sequence[str] = PATIENT, at_exit: str = "remove"
) -> ServerProcess:
    """A server with tiers, in the order given; they are up.

    Args:
        folder: short path for its sockets; made if absent.
        arena_dir: of the arena.
        l2: URLs.
        more: further options.
        at_exit: what becomes of the arena.
    """
    folder.mkdir(exist_ok=True)
    tiers = [word for url in l2 for word in ("--l2", url)]
    server = ServerProcess(folder, arena_dir, *sizes(), *tiers, *more, "--arena-at-exit", at_exit)
    if not wait_until(lambda: num_up(server) == len(l2), UP_S, 0.02):
        said = server.log()
        server.kill()
        raise AssertionError(f"tiers are not up: {said}")
    return server


def num_up(server: ServerProcess) -> int:
    """How many tiers may be asked now."""
    values = counters(server)
    return sum(values[name] for name in values if re.fullmatch(r"tier_.*_up", name))


def content(key: bytes) -> bytes:
    """What the chunk of this key holds."""
    return shake_128(key).digest(PAGE_BYTES)


def chains(count: int = NUM_CHAINS, seed: int = 0) -> list[list[bytes]]:
    """Keys of a working set."""
    return [make_keys(1000 * seed + at, CHAIN) for at in range(count)]


def arrive(engine: Engine, server: ServerProcess) -> None:
    """An engine that has said hello reads nothing of former servers.

    This process lives on after ``leave``: its word is what ends a quarantine.
    """
    former = {(epoch, token) for epoch, token in _LEFT if epoch != engine.welcome.epoch}
    for epoch, token in former:
        engine.side.send(side.pack(side.Drained(epoch=epoch, token=token)))
    if former:
        assert wait_until(lambda: not counters(server)["arena_quarantined_bytes"])


def leave(engine: Engine, server: ServerProcess) -> None:
    """What an engine mapped is never looked at again; its server may be gone."""
    _LEFT.add((engine.welcome.epoch, engine.welcome.token))
    if server.process.poll() is None:
        engine.wire.call(Unregister(session=engine.session), Done)


class TierEngine(Engine):
    """An engine that saves chains and fetches them again.

    Args:
        server: to register with.
        model: another one is another namespace.
    """

    def __init__(self, server: ServerProcess, model: str = "test/tiers") -> None:
        namespace = make_namespace(PAGE_BYTES, model)
        super().__init__(server.url, server.side_path, namespace, num_pages=CHAIN)
        self.request = 0
        self._server = server
        arrive(self, server)
        self.register()
        self.pump_while_waiting()

    def close(self) -> None:
        """Leaves; what it mapped is never looked at again. Its server may be gone."""
        leave(self, self._server)
        super().close()

    def keep(self, keys: list[bytes], limit_s: float = 20.0) -> None:
        """Saves a chain, again where the server has no room at once, until it can be found."""
        for page, key in enumerate(keys):
            self.pages[page] = np.frombuffer(content(key), np.uint8)
        deadline_s = time.monotonic() + limit_s
        while self.save(keys, list(range(len(keys)))) < len(keys):
            assert time.monotonic() < deadline_s, "no room in time"
            time.sleep(0.005)
        while counters(self._server)["extents_unmapped"]:
            assert time.monotonic() < deadline_s, "not mapped in time"
            self.pump()

    def look(self, keys: list[bytes], wait_ms: int = MAX_WAIT_MS) -> LookupReply:
        """LOOKUP and, where more is on its way, one QUERY_PREFETCH_STATUS."""
        self.request += 1
        found = self.lookup(keys, self.request)
        if found.final:
            return found
        body = QueryPrefetchStatus(session=self.session, request=self.request, wait_ms=wait_ms)
        return self.wire.call(body, LookupReply, MAX_WAIT_MS / 1000 + 5)

    def end(self) -> None:
        """The last request is over."""
        body = EndSession(session=self.session, request=self.request)
        self.wire.call(body, Released)

    def fetch(self, keys: list[bytes], wait_ms: int = MAX_WAIT_MS) -> int:
        """Looks a chain up, waits once, reads what is ready and compares it.

        Returns:
            Leading chunks that came.
        """
        found = self.look(keys, wait_ms)
        if found.ready:
            rows = self.read(found.lease, found.ready)
            for key, row in zip(keys, rows, strict=False):
                assert row.tobytes() == content(key), "wrong bytes"
            self.release(found.lease)
        self.end()
        return found.ready


def counters(server: ServerProcess) -> dict[str, int]:
    """STATS of a server."""
    return asking.stats(server.side_path, STATS_S)


def settle(server: ServerProcess, tier: str, num_chunks: int, limit_s: float = 30.0) -> None:
    """Waits until a tier was given so many chunks since the server's start.

    Args:
        server: with a tier of that name, which writes through.
        tier: its name.
        num_chunks: of one shard.
        limit_s: longest wait.
    """
    wanted = num_chunks * PAGE_BYTES
    name = f"tier_{tier}_put_bytes"
    assert wait_until(lambda: counters(server).get(name, 0) >= wanted, limit_s, 0.05), counters(
        server
    )


def filled(server: ServerProcess, tier: str, working_set: list[list[bytes]]) -> None:
    """Saves a working set through an engine that leaves afterwards, and waits for the tier."""
    with TierEngine(server) as engine:
        for number, keys in enumerate(working_set, 1):
            engine.keep(keys)
            settle(server, tier, number * CHAIN)


def fetched(server: ServerProcess, working_set: list[list[bytes]]) -> list[int]:
    """What a new engine finds of each chain."""
    with TierEngine(server) as engine:
        found = [engine.fetch(keys) for keys in working_set]
    print(found, {name: value for name, value in counters(server).items() if _TOLD.match(name)})
    return found


@contextmanager
def filled_disk(
    short_dir: Path, shm_dir: Path, url: str, working_set: list[list[bytes]]
) -> Iterator[ServerProcess]:
    """A server that keeps its arena, with a working set in its disk tier."""
    with serve(short_dir, shm_dir / "a", url, at_exit="keep") as server:
        filled(server, "disk", working_set)
        yield server

"""Recorded sessions of coding agents, merged by time, against a server with a small L1.

    python -m tests.tiers.sessions TRACES [--l2 URL]... [--deadline S] [--wait-ms N] [--json]

Every block of 64 tokens is one chunk of 4 KiB whose bytes follow from its key; what a server says
it has is read and compared. L1 holds a quarter of all blocks. Prints the ratio of hits to blocks,
what it is for an unlimited cache, what an independent count says of L1 alone, and misses by reason.
TRACES is a folder with ``trace_*.json`` files, in it or below; the format is that of
callanjfox/kv-cache-tester. Knows the wire and the counters only. Runs in a process of its own; the
server is its child.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np

from protocol.messages import EndSession, LookupReply, QueryPrefetchStatus, Released
from tests.tiers.leaflru import LeafLru
from tests.tiers.rig import UP_S, arrive, counters, leave, num_up
from tests.wire.client import Engine, make_namespace
from tests.wire.process import ServerProcess, wait_until

BLOCK_TOKENS: Final = 64
PAGE_BYTES: Final = 4096
EXTENT_BYTES: Final = 106 * 4096
SLOTS: Final = 101
"""Of an extent, beside header and records; 182 extents are a quarter of the public traces."""


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        keys: of its full blocks.
        usable: leading ones that a hit may cover: never the one with the prompt's last token.
    """

    keys: list[bytes]
    usable: int


def read_sessions(folder: Path) -> list[Asked]:
    """All requests of all sessions, by their time since their session's start."""
    found: list[tuple[float, str, int, Asked]] = []
    for path in sorted(folder.rglob("trace_*.json")):
        session: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for number, one in enumerate(session["requests"]):
            keys = [_key(path.name, block) for block in one["hash_ids"]]
            usable = max(0, min(len(keys), (one["in"] - 1) // BLOCK_TOKENS))
            found.append((one["t"], path.name, number, Asked(keys, usable)))
    return [one for *_, one in sorted(found, key=lambda row: row[:3])]


def _key(session: str, block: int) -> bytes:
    return blake2b(f"{session}/{block}".encode(), digest_size=16).digest()


def unlimited(asked: Sequence[Asked]) -> float:
    """The ratio of a cache that never evicts."""
    held: set[bytes] = set()
    hits = 0
    for one in asked:
        ready = next((at for at, key in enumerate(one.keys) if key not in held), len(one.keys))
        hits += min(ready, one.usable)
        held.update(one.keys)
    return hits / sum(len(one.keys) for one in asked)


def whole(asked: Sequence[Asked]) -> float:
    """The ratio where all of it was stored before."""
    return sum(one.usable for one in asked) / sum(len(one.keys) for one in asked)


def l1_extents(asked: Sequence[Asked]) -> int:
    """Extents of a quarter of all blocks."""
    distinct = len({key for one in asked for key in one.keys})
    return distinct // 4 // SLOTS


def counted(asked: Sequence[Asked]) -> float:
    """The ratio of L1 alone, counted without a server."""
    cache = LeafLru(l1_extents(asked) * SLOTS)
    hits = sum(cache.ask(one.keys, one.usable) for one in asked)
    return hits / sum(len(one.keys) for one in asked)


class Player:
    """An engine that asks, reads, compares and stores.

    Args:
        server: where.
        most: blocks of the longest prompt.
        wait_ms: of a QUERY_PREFETCH_STATUS.
        is_calm: let tiers write what was stored before the next request. People think for longer
            than that between their requests; here nobody does.
    """

    def __init__(
        self, server: ServerProcess, most: int, wait_ms: int, is_calm: bool = False
    ) -> None:
        namespace = make_namespace(PAGE_BYTES, "tests/sessions")
        self._server = server
        self._engine = Engine(server.url, server.side_path, namespace, most)
        arrive(self._engine, server)
        self._engine.register()
        self._engine.pump_while_waiting()
        self._wait_ms = wait_ms
        self._is_calm = is_calm
        self._number = 0
        self.slowest_s = 0.0

    def ask(self, one: Asked) -> int:
        """One request: blocks that it hits, each compared; then all of it is stored."""
        engine, self._number = self._engine, self._number + 1
        engine.pump()
        begin_s = time.monotonic()
        found = engine.lookup(one.keys, self._number)
        if not found.final and self._wait_ms:
            body = QueryPrefetchStatus(
                session=engine.session, request=self._number, wait_ms=self._wait_ms
            )
            found = engine.wire.call(body, LookupReply, self._wait_ms / 1000 + 5)
        self.slowest_s = max(self.slowest_s, time.monotonic() - begin_s)
        if found.ready:
            rows = engine.read(found.lease, found.ready)
            keys = np.frombuffer(b"".join(one.keys[: found.ready]), np.uint8).reshape(-1, 1, 16)
            assert (rows.reshape(found.ready, -1, 16) == keys).all(), "wrong bytes"
            engine.release(found.lease)
        end = EndSession(session=engine.session, request=self._number)
        engine.wire.call(end, Released)
        self._store(one.keys, found.ready)
        if self._is_calm:
            assert wait_until(lambda: not _puts_waiting(self._server), 30.0, 0.002)
        return min(found.ready, one.usable)

    def _store(self, keys: list[bytes], ready: int) -> None:
        engine, deadline_s = self._engine, time.monotonic() + 30.0
        for page, key in enumerate(keys[ready:], ready):
            engine.pages[page].reshape(-1, 16)[:] = np.frombuffer(key, np.uint8)
        held = ready
        while held < len(keys):
            store, answer = engine.store(keys, list(range(ready, len(keys))), ready)
            held = ready + answer.held
            if answer.copied:
                held += engine.commit(store, answer.copied).published
            assert time.monotonic() < deadline_s, answer

    def close(self) -> None:
        """Leaves."""
        leave(self._engine, self._server)
        self._engine.close()


def _puts_waiting(server: ServerProcess) -> int:
    values = counters(server)
    return sum(values[name] for name in values if name.endswith("_puts_waiting"))


def play(
    server: ServerProcess, asked: Sequence[Asked], wait_ms: int, is_calm: bool = False
) -> dict[str, Any]:
    """All requests, one after the other; figures of them and of the server."""
    player = Player(server, max(len(one.keys) for one in asked), wait_ms, is_calm)
    begin_s = time.monotonic()
    hits = sum(player.ask(one) for one in asked)
    player.close()
    values = counters(server)
    words = ("miss_chunks_", "tier_", "evicted_")
    return {
        "ratio": hits / sum(len(one.keys) for one in asked),
        "slowest_s": player.slowest_s,
        "seconds": time.monotonic() - begin_s,
        **{name: value for name, value in values.items() if name.startswith(words)},
    }


def launch(
    folder: Path, arena_dir: Path, asked: Sequence[Asked], *more: str, at_exit: str = "remove"
) -> ServerProcess:
    """A server whose L1 is a quarter of all blocks."""
    folder.mkdir(exist_ok=True)
    l1_bytes = l1_extents(asked) * EXTENT_BYTES
    sizes = ("--l1-size", str(l1_bytes), "--extent-size", str(EXTENT_BYTES))
    server = ServerProcess(folder, arena_dir, *sizes, *more, "--arena-at-exit", at_exit)
    assert wait_until(lambda: num_up(server) == more.count("--l2"), UP_S, 0.02), server.log()
    return server


@click.command()
@click.argument("traces", type=click.Path(exists=True, path_type=Path))
@click.option("--l2", multiple=True, help="URL of a tier")
@click.option("--deadline", default="1s", show_default=True)
@click.option("--wait-ms", default=15, show_default=True, help="0 for no wait")
@click.option("--calm", is_flag=True, help="let tiers write between requests")
@click.option("--json", "as_json", is_flag=True)
def main(
    traces: Path, l2: tuple[str, ...], deadline: str, wait_ms: int, calm: bool, as_json: bool
) -> None:
    """Plays all sessions once."""
    asked = read_sessions(traces)
    more = [word for url in l2 for word in ("--l2", url)]
    if l2:
        more += ["--promote-deadline", deadline]
    with (
        TemporaryDirectory(prefix="kvk-") as folder,
        TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as shared,
        launch(Path(folder), Path(shared) / "a", asked, *more) as server,
    ):
        figures = play(server, asked, wait_ms, calm)
    figures |= {"unlimited": unlimited(asked), "l1_counted": counted(asked)}
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:32}{value:.4f}" if isinstance(value, float) else f"{name:32}{value}")


if __name__ == "__main__":
    main()

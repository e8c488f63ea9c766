"""What a server held, to be found again in the next one: prompts, their pages, and a check of all.

Knows the wire client and the process; nothing of the inside. Runs in the pytest process.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Stats, StatsReply
from protocol.namespace import Namespace
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

ARGUMENTS = ("--l1-size", "64M", "--extent-size", "1M", "--log-level", "INFO")
CHUNKS = 20


def launch(folder: Path, arena: Path, *arguments: str) -> ServerProcess:
    """A server that keeps its arena; options that come last win."""
    return ServerProcess(folder, arena, *ARGUMENTS, "--arena-at-exit", "keep", *arguments)


def connect(server: ServerProcess, namespace: Namespace | None = None) -> Engine:
    """An engine of this process with room for all prompts."""
    engine = Engine(server.url, server.side_path, namespace, num_pages=CHUNKS)
    engine.register()
    engine.pump_while_waiting()
    return engine


def stats(engine: Engine) -> dict[str, int]:
    """The server's counters and gauges."""
    return engine.wire.call(Stats(), StatsReply).values


@dataclass
class Kept:
    """Prompts that were saved.

    Attributes:
        namespace: whose.
        keys: of each prompt, by its seed.
        pages: uint8[CHUNKS, page_bytes] of each prompt.
    """

    namespace: Namespace = field(default_factory=make_namespace)
    keys: dict[int, list[bytes]] = field(default_factory=dict)
    pages: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def fill(self, engine: Engine, seed: int) -> None:
        """Puts a prompt's pages into an engine's pool; remembers them before they are stored."""
        rng = np.random.default_rng(seed)
        engine.pages[:] = rng.integers(0, 256, engine.pages.shape, dtype=np.uint8)
        self.keys[seed] = make_keys(seed, CHUNKS)
        self.pages[seed] = engine.pages.copy()

    def save(self, engine: Engine, seeds: range) -> int:
        """Saves prompts; returns how many chunks were held."""
        held = 0
        for seed in seeds:
            self.fill(engine, seed)
            held += engine.save(self.keys[seed], list(range(CHUNKS)))
        return held

    def check(self, engine: Engine) -> int:
        """Looks every prompt up and compares every byte that is offered; returns the hits."""
        hits = 0
        for seed, keys in self.keys.items():
            found = engine.lookup(keys, request=seed)
            if found.ready:
                data = engine.read(found.lease, found.ready)
                assert np.array_equal(data, self.pages[seed][: found.ready]), f"prompt {seed}"
                engine.release(found.lease)
            hits += found.ready
        return hits


def try_save(kept: Kept, engine: Engine, seed: int) -> int:
    """Saves one prompt as far as there is room; returns how many chunks are held then."""
    kept.fill(engine, seed)
    try:
        return engine.save(kept.keys[seed], list(range(CHUNKS)))
    except ReplyError as error:
        if error.code in (ErrorCode.NO_ROOM, ErrorCode.BUSY):
            return 0
        raise


def let_go(engine: Engine) -> None:
    """Unmaps every extent, so that the next server finds nobody who may read them."""
    engine.extents.clear()
    gc.collect()


def drain(engine: Engine, former: Engine, left: int) -> None:
    """Says that this process reads nothing of a former server any more.

    Args:
        engine: of the present server.
        former: of this process and that server.
        left: processes that are awaited from then on.
    """
    let_go(former)
    token, epoch = former.welcome.token, former.hello.epoch
    engine.side.send(side.pack(side.Drained(epoch=epoch, token=token)))
    assert wait_until(lambda: stats(engine)["parties_awaited"] == left, 5), stats(engine)

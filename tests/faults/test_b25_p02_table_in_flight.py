"""B25, P02: whatever happens during a copy, with whoever stopped meanwhile: a table, cell by cell.

Ten events, in the middle of a save or of a load, with nobody, the copier or the engine stopped and
continued. Real processes; the copier is slowed (``tests/faults/injected``), so that a save is in
its middle. In each cell: what is asked is answered, every byte that is ever served is the right
one, what was promised is loaded, nothing stays reserved, pinned or quarantined, and a drain ends
within its limit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from protocol import side
from protocol.messages import (
    ChunkCountReply,
    Clear,
    Delete,
    Done,
    Inspect,
    LookupReply,
    StoreReply,
    Unregister,
)
from protocol.namespace import fingerprint
from tests.faults.bystander import is_saved, read_all, retrieve, stats, submit_store
from tests.faults.copierfaults import faulty_server
from tests.faults.inflight import NUM_CHUNKS, InFlight, content
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import wait_until

EVENTS = (
    "cancel",
    "evict",
    "reclaim",
    "clear",
    "delete",
    "unregister",
    "sigterm",
    "engine_death",
    "copier_death",
    "server_death",
)
DIRECTIONS = ("save", "load")
STOPPED = ("nobody", "copier", "engine")


def cells() -> Iterator[object]:
    """All of them; those beyond a sample, which has each event in both directions, are slow."""
    for number, (event, direction) in enumerate(product(EVENTS, DIRECTIONS)):
        for turn, stopped in enumerate(STOPPED):
            is_slow = turn != (number + number // len(STOPPED)) % len(STOPPED)
            name = f"{event}-{direction}-{stopped}_stopped"
            marks = [pytest.mark.slow] if is_slow else []
            yield pytest.param(event, direction, stopped, id=name, marks=marks)


SIZES = ("--l1-size", "8M", "--extent-size", "1M", "--arena-at-exit", "keep")
PACE_S = 0.006
DRAIN_LIMIT_S = 12.0
"""5 s for what is owed, then the end of each thread within 5 s more."""

MINE, KEPT, PRESSED, FIRST_PRESSED = 1, 2, 3, 100
"""Seeds: of the chunks in flight, of those that others hold, of the bytes of all that is stored
for pressure, and of the first keys of that."""


class Table:
    """One cell: a server, an engine in the middle of something, and others around it."""

    def __init__(self, stack: ExitStack, folder: Path, arena_dir: Path) -> None:
        self.stack = stack
        self.folder, self.arena_dir = folder, arena_dir
        self.server, self.faults = stack.enter_context(faulty_server(folder, arena_dir, *SIZES))
        self.engines: list[Engine] = []
        self.observer = self.engine("table/one")
        self.rival = self.engine("table/two")
        self.epoch = self.observer.hello.epoch
        self.saved: dict[int, Engine] = {}
        self.pending: list[tuple[Engine, int, int, int]] = []
        self.next_seed = FIRST_PRESSED
        self.other = self.engine("table/one")

    def engine(self, model: str) -> Engine:
        engine = Engine(self.server.url, self.server.side_path, make_namespace(model=model))
        self.stack.callback(engine.close)
        engine.register()
        engine.wire.on_wait = self.pump
        self.engines.append(engine)
        return engine

    def pump(self) -> None:
        """All engines of this process map and unmap while one of them waits."""
        for engine in self.engines:
            engine.pump()

    def save(self, engine: Engine, seed: int) -> None:
        """Saves chunks of a seed; tried again while a copier starts."""
        engine.pages[:] = content(seed, engine.page_bytes)
        assert wait_until(lambda: is_saved(engine, make_keys(seed, NUM_CHUNKS)), 20, 0.05)
        self.saved[seed] = engine

    def press(self, engine: Engine, rounds: int = 10) -> None:
        """Asks for more than the arena holds; answered in ``settle``, the copier may be stopped.

        All of it is stored from the same pages: the oldest question may be copied last.
        """
        for _ in range(rounds):
            seed, self.next_seed = self.next_seed, self.next_seed + 1
            keys = make_keys(seed, NUM_CHUNKS)
            seq = submit_store(engine, keys, list(range(NUM_CHUNKS)), 10_000 + seed)
            self.pending.append((engine, seq, seed, 10_000 + seed))

    def settle(self) -> None:
        """Takes and commits what ``press`` asked for; all of it was answered."""
        for engine, seq, seed, store in self.pending:
            reply = engine.wire.reply(seq, 20)
            assert reply.error is None or reply.error.retryable, reply.error
            if isinstance(reply.body, StoreReply) and reply.body.copied:
                engine.commit(store, reply.body.copied)
                self.saved[seed] = engine
        self.pending.clear()

    def check(self, engine: Engine, seed: int, source: int | None = None) -> int:
        """Whatever is served of these chunks is right; returns how many are."""
        keys = make_keys(seed, NUM_CHUNKS)
        engine.pump()
        asked = Inspect(fingerprint=fingerprint(engine.namespace), keys=b"".join(keys))
        count = engine.wire.call(asked, ChunkCountReply).chunks
        if count:
            expected = content(seed if source is None else source, engine.page_bytes)
            assert np.array_equal(read_all(engine, keys[:count], 50), expected[:count])
        return count

    def is_clean(self) -> bool:
        self.pump()
        values = stats(self.observer)
        names: tuple[str, ...] = (
            "slots_reserved",
            "stores",
            "copies_in_flight",
            "leases",
            "pinned_slots",
        )
        names += ("arena_quarantined_bytes", "copiers_stuck")
        return all(values[name] == 0 for name in names)

    def restart(self) -> None:
        """The next server, in the same arena, with engines that fill it at once."""
        self.server, self.faults = self.stack.enter_context(
            faulty_server(self.folder, self.arena_dir, *SIZES)
        )
        self.engines.clear()
        self.observer, self.rival = self.engine("table/one"), self.engine("table/two")
        self.other = self.engine("table/one")
        self.saved, self.pending = {KEPT: self.observer}, []
        # The engines of this process, of before, read nothing any more; the child still does.
        self.other.side.send(side.pack(side.Drained(epoch=self.epoch)))
        self.epoch = self.observer.hello.epoch
        for engine in (self.observer, self.rival):
            engine.pages[:] = content(PRESSED, engine.page_bytes)


@pytest.fixture
def table(short_dir: Path, shm_dir: Path) -> Iterator[Table]:
    with ExitStack() as stack:
        yield Table(stack, short_dir, shm_dir / "a")


def wait_for_lease(engine: Engine, keys: list[bytes]) -> LookupReply:
    """A lease of all keys, once this engine has mapped them."""

    def is_ready() -> bool:
        engine.pump()
        return engine.lookup(keys).ready == len(keys)

    assert wait_until(is_ready)
    return engine.lookup(keys)


def happen(table: Table, event: str, child: InFlight, direction: str) -> None:
    """The event; what ends a process has ended it when this returns."""
    one = fingerprint(table.observer.namespace)
    if event == "cancel":
        assert child.tell("cancel" if direction == "save" else "end") == "sent"
    elif event == "unregister" and direction == "save":
        assert child.tell("unregister") == "sent"
    elif event == "unregister":  # another reader of the same chunks
        table.engines.remove(table.other)
        table.other.wire.call(Unregister(session=table.other.session), Done)
    elif event in ("evict", "reclaim"):
        table.press(table.observer if event == "evict" else table.rival)
    elif event == "clear":
        table.observer.wire.call(Clear(fingerprint=one), ChunkCountReply)
    elif event == "delete":
        keys = b"".join(make_keys(MINE, NUM_CHUNKS))
        table.observer.wire.call(Delete(fingerprint=one, keys=keys), ChunkCountReply)
    elif event == "sigterm":
        begun_s = time.monotonic()
        assert table.server.terminate() == 0
        assert time.monotonic() - begun_s < DRAIN_LIMIT_S
    elif event == "engine_death":
        child.kill()
    elif event == "copier_death":
        [copier] = table.server.children()
        os.kill(copier, signal.SIGKILL)
    else:
        table.server.kill()


def happen_while_stopped(
    table: Table, event: str, child: InFlight, direction: str, stopped: str
) -> None:
    """The event, with somebody stopped from before it (its own word: from after) and continued."""
    says_it = event == "cancel" or (event == "unregister" and direction == "save")
    pids = {"nobody": [], "copier": table.server.children(), "engine": [child.pid]}[stopped]
    if stopped == "engine" and says_it:
        happen(table, event, child, direction)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    if stopped != "engine" or not says_it:
        happen(table, event, child, direction)
    if pids:
        time.sleep(0.2)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:  # it died of the event
            pass


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("event", "direction", "stopped"), list(cells()))
def test_cell(table: Table, event: str, direction: str, stopped: str) -> None:
    table.save(table.observer, KEPT)
    if direction == "load":
        table.save(table.observer, MINE)
    for engine in (table.observer, table.rival):
        engine.pages[:] = content(PRESSED, engine.page_bytes)
    pace = table.faults.pace(PACE_S if direction == "save" else 0)
    lease = b""
    with pace, InFlight(table.server, "table/one", direction, MINE) as child:
        if direction == "save":
            assert wait_until(lambda: stats(table.observer)["copies_in_flight"] > 0, every_s=0)
        else:  # the same chunks have a second reader
            lease = wait_for_lease(table.other, make_keys(MINE, NUM_CHUNKS)).lease
            retrieve(table.other, lease, NUM_CHUNKS)
        if event in ("sigterm", "server_death"):
            assert child.tell("hush") == "hushed"
        happen_while_stopped(table, event, child, direction, stopped)
        if lease and event not in ("unregister", "sigterm", "server_death"):
            assert table.other.release(lease) <= NUM_CHUNKS
        if event in ("sigterm", "server_death"):
            after_the_server(table, child, direction, event, stopped)
        elif direction == "save":
            after_save(table, child, event)
        else:
            after_load(table, child, event)
    assert wait_until(table.is_clean), stats(table.observer)
    check_all(table)
    assert "Traceback" not in table.server.log()


def after_save(table: Table, child: InFlight, event: str) -> None:
    if event == "engine_death":
        table.settle()
        assert table.check(table.observer, MINE) == 0
        return
    words = child.tell("settle").split(",")
    allowed = {
        "cancel": {"UNKNOWN_STORE", "done"},
        "clear": {"copied 0"},
        "delete": {"copied 0"},
        "unregister": {"UNKNOWN_SESSION", "done"},
        "copier_death": {f"copied {count}" for count in range(NUM_CHUNKS)} | {"COPY_FAILED"},
        "evict": {f"copied {count}" for count in range(1, NUM_CHUNKS + 1)},
        "reclaim": {f"copied {count}" for count in range(1, NUM_CHUNKS + 1)},
    }[event]
    assert set(words) <= allowed, words
    assert table.check(table.observer, MINE) == 0  # copied is not published
    committed = child.tell("commit")
    published = int(committed) if committed.isdecimal() else 0
    copied = int(words[0].split()[1]) if words[0].startswith("copied") else 0
    assert published == copied
    assert table.check(table.observer, MINE) == published
    table.settle()


def after_load(table: Table, child: InFlight, event: str) -> None:
    table.settle()
    if event == "engine_death":
        return
    # Everything else was stored over and over by now.
    table.press(table.observer, 4)
    table.press(table.rival, 4)
    table.settle()
    assert child.tell("finish") == "right"


def after_the_server(
    table: Table, child: InFlight, direction: str, event: str, stopped: str
) -> None:
    if direction == "save":
        # A drain waits for a copy, unless that hangs; nothing is published by it.
        drained = event == "sigterm" and stopped != "copier"
        words = child.tell("settle")
        assert words == f"copied {NUM_CHUNKS}" if drained else words in ("silent", "UNKNOWN_STORE")
    table.restart()
    if direction == "save":
        assert table.check(table.observer, MINE) == 0
    for engine in (table.observer, table.rival):
        table.press(engine)
    table.settle()
    if direction == "load":
        assert child.tell("finish") == "right"
    child.kill()


def check_all(table: Table) -> None:
    """Whatever is served is right, and the whole arena can be filled anew."""
    for seed, engine in table.saved.items():
        table.check(engine, seed, PRESSED if seed >= FIRST_PRESSED else None)
    for seed in range(5000, 5010):
        table.save(table.observer, seed)
    assert table.check(table.observer, 5009) == NUM_CHUNKS

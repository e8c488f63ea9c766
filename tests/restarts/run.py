"""The conductor: servers one after another on one arena, each killed under load and looked into.

A life: start, the time to the first LOOKUP's answer, every byte compared, load until chunks are
evicted and extents reclaimed, ``kill -9`` at a random moment, and a look at the files. In some
lives an old engine stands stopped and reads in the next one. Knows its children, the wire client
and the files' format, nothing of the server's inside. Runs in the main process.
"""

from __future__ import annotations

import gc
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol import side
from protocol.errors import ReplyError
from protocol.ids import Fingerprint
from protocol.messages import Done, Stats, StatsReply, Unregister
from protocol.namespace import fingerprint
from tests.restarts.children import Child
from tests.restarts.content import MAIN, PAGE_BYTES, as_bytes, keys_of, model, page_bytes
from tests.restarts.figures import Kill, Tally
from tests.restarts.ledger import Ledger
from tests.restarts.snapshot import Snapshot, take
from tests.restarts.verifier import Found, verify
from tests.wire.client import Engine, make_namespace
from tests.wire.process import ServerProcess, wait_until

EXTENTS = 48
"""Of which the arena consists, about."""

ROOM = 2.1
"""The arena's size in chunks to be held: guests take two fifths of it in fifty lives."""

WRITERS = 2
LOAD_LIMIT_S = 8.0
FILL_LIMIT_S = 300.0
PRESS_S = 1.5
HELD_CHAINS = 8
GUEST_PAUSE_S = 0.02
PAUSE_S = 0.01
"""Between answers, so that others get a turn."""


@dataclass(frozen=True)
class Plan:
    """What is asked.

    Attributes:
        kills: how many.
        chunks: to be held at each.
        seed: of the moments.
        broken: what the server lacks, or empty.
        hold_every: of so many kills one finds an engine stopped that reads later.
        stop_at_wrong: ends with the first wrong page.
    """

    kills: int
    chunks: int
    seed: int
    broken: str = ""
    hold_every: int = 10
    stop_at_wrong: bool = False


def name_of(space: int) -> Fingerprint:
    """The fingerprint of a space's namespace."""
    return fingerprint(make_namespace(page_bytes(space), model(space)))


class Run:
    """One run.

    Args:
        plan: what is asked.
        folder: short path for sockets and logs.
        arena: the arena's folder, in shared memory.
        say: takes lines for people.
    """

    def __init__(self, plan: Plan, folder: Path, arena: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._arena = arena
        self._say = say
        self._chance = random.Random(plan.seed)
        self._ledger = Ledger(folder / "log")
        self._ledger.path.touch()
        self._snapshot = Snapshot()
        self._former: list[tuple[bytes, bytes]] = []
        self._reader: Child | None = None
        self.tally = Tally(plan.seed, plan.chunks)

    def run(self) -> Tally:
        """All lives; the last server is ended in peace."""
        log = str(self._ledger.path)
        with ExitStack() as stack:
            self._writers = []
            for number in range(WRITERS + 1):
                writer = Child("tests.restarts.writer", [str(number), log])
                stack.callback(writer.close)
                self._writers.append(writer)
            stack.callback(self._end_reader)
            for life in range(self._plan.kills + 1):
                try:
                    is_over = self._live(life)
                except (TimeoutError, ConnectionError, ReplyError, AssertionError) as error:
                    self.tally.troubles.append(f"life {life}: {type(error).__name__}: {error}")
                    self._say(self.tally.troubles[-1])
                    break
                if is_over:
                    break
        return self.tally

    def _live(self, life: int) -> bool:
        """One server; returns whether it was the last."""
        begun_s = time.monotonic()
        with self._launch() as server:
            checker = self._engine(server, MAIN)
            try:
                return self._look_and_load(life, server, checker, begun_s)
            finally:
                checker.close()
                del checker
                gc.collect()

    def _look_and_load(
        self, life: int, server: ServerProcess, checker: Engine, begun_s: float
    ) -> bool:
        kill = self.tally.kills[-1] if self.tally.kills else Kill()
        self._ask_first(checker, kill, begun_s)
        if life:
            self._verify(server, checker, kill)
            self._say(f"kill {life}: {vars(kill)}")
        self._leave(checker)
        if life == self._plan.kills or self._is_caught():
            return True
        self._load(life, server, checker, kill)
        log = server.log()
        if "Traceback" in log and not self._plan.broken:
            self.tally.troubles.append(f"life {life}: a traceback in the server's log")
            self._say(log[-4000:])
        return self._is_caught()

    def _is_caught(self) -> bool:
        return self._plan.stop_at_wrong and self.tally.found_wrong > 0

    # --- starting -----------------------------------------------------------------------------

    def _launch(self) -> ServerProcess:
        total = int(self._plan.chunks * ROOM * (PAGE_BYTES + 128))
        extent = max(256 << 10, total // EXTENTS // 4096 * 4096)
        lacks = self._plan.broken
        return ServerProcess(
            self._folder,
            self._arena,
            *("--l1-size", str(total), "--extent-size", str(extent)),
            *("--arena-at-exit", "keep", "--log-level", "INFO"),
            prefix=(sys.executable, "-m", "tests.restarts.broken", lacks) if lacks else (),
        )

    def _engine(self, server: ServerProcess, space: int) -> Engine:
        kind = make_namespace(page_bytes(space), model(space))
        engine = Engine(server.url, server.side_path, kind, num_pages=1)
        for epoch, token in self._former[-2:]:
            engine.side.send(side.pack(side.Drained(epoch=epoch, token=token)))
        engine.register()
        engine.pump_while_waiting()
        return engine

    def _ask_first(self, checker: Engine, kill: Kill, begun_s: float) -> None:
        """Asks for a chain that is held; by now every extent is mapped."""
        held = self._snapshot.held.get(bytes(name_of(MAIN)), set())
        for chain in self._ledger.chains.get(MAIN, {}):
            keys = as_bytes(keys_of(MAIN, chain, 1))
            if keys[0] in held:
                found = checker.lookup(keys)
                kill.answer_s = time.monotonic() - begun_s
                assert found.ready == 1, "the first LOOKUP was no hit"
                checker.release(found.lease)
                return

    # --- looking ------------------------------------------------------------------------------

    def _verify(self, server: ServerProcess, checker: Engine, kill: Kill) -> None:
        # Guests first: what is looked at earlier counts as older, so the next guest takes from them
        # before it takes from the space that is to hold most.
        for space in sorted(self._ledger.chains, key=lambda one: one == MAIN):
            chains = self._ledger.chains[space]
            held = self._snapshot.held.get(bytes(name_of(space)), set())
            if space == MAIN:
                found = verify(checker, space, chains, held)
                self._count(space, found, kill)
            elif held:
                engine = self._engine(server, space)
                try:
                    self._count(space, verify(engine, space, chains, held), kill)
                    self._leave(engine)
                finally:
                    engine.close()
            else:  # its extents are all reclaimed
                del self._ledger.chains[space]

    def _count(self, space: int, found: Found, kill: Kill) -> None:
        kill.due += found.due
        kill.hits += found.hits
        kill.more += found.more
        kill.unrecorded += found.unrecorded
        kill.wrong += found.wrong
        for where, chain, count in self._ledger.last:
            if where == space == MAIN:
                kill.fresh += count
                kill.fresh_hits += min(count, found.ready.get(chain, 0))
        self._ledger.forget(space, found.gone)

    def _leave(self, engine: Engine) -> None:
        """Unregisters and unmaps everything; the connection stays."""
        engine.wire.on_wait = None
        engine.wire.call(Unregister(session=engine.session), Done)
        self._former.append((engine.hello.epoch, engine.welcome.token))
        engine.extents.clear()
        gc.collect()

    # --- load ---------------------------------------------------------------------------------

    def _load(self, life: int, server: ServerProcess, checker: Engine, kill: Kill) -> None:
        is_held = life > 0 and life % self._plan.hold_every == 0 and life < self._plan.kills - 1
        if is_held:
            self._hold(server)
        # The first life fills the cache; a server that lacks a guard is to be caught soon.
        pause = PAUSE_S if life and not self._plan.broken else 0
        # A guest may wait for an extent that a stopped engine does not let go of.
        num_writers = WRITERS if life == 0 or is_held else WRITERS + 1
        for number, writer in enumerate(self._writers):
            is_guest = number == WRITERS
            space, pause_s = (life + 1, GUEST_PAUSE_S) if is_guest else (MAIN, pause)
            if number < num_writers:
                writer.tell(f"{server.url} {server.side_path} {space} {pause_s}")
        writers = self._writers[:num_writers]
        for writer in writers:
            assert writer.hear() == "busy"
        if self._reader is not None and not is_held:
            time.sleep(PRESS_S)
            self._read_late(checker, kill)
        next_kill = Kill()
        self._await_pressure(life, checker, next_kill, is_held)
        server.kill()
        self._look_into(life, writers, next_kill)

    def _await_pressure(self, life: int, checker: Engine, kill: Kill, is_held: bool) -> None:
        """Waits until what is wanted happens, then for a moment that chance chooses."""
        files = self._files()
        first = _stats(checker).get("evicted_chunks", 0)

        def is_pressed() -> bool:
            found = _stats(checker)
            if life == 0:
                return found["chunks"] >= self._plan.chunks and found.get("evicted_chunks", 0) > 0
            evicted = found.get("evicted_chunks", 0) > first
            # A stopped engine lets go of nothing that others want of its extents.
            return evicted and (is_held or bool(files - self._files()))

        wait_until(is_pressed, LOAD_LIMIT_S if life else FILL_LIMIT_S, 0.02)
        time.sleep(self._chance.uniform(0.0, 0.3))
        before = _stats(checker).get("evicted_chunks", 0)
        time.sleep(self._chance.uniform(0.05, 0.1))
        last = _stats(checker).get("evicted_chunks", 0)
        kill.evicted, kill.evicted_last = last - first, last - before
        kill.reclaimed = len(files - self._files())

    def _files(self) -> set[str]:
        return {path.name for path in self._arena.glob("*.extent")}

    def _look_into(self, life: int, writers: list[Child], kill: Kill) -> None:
        keys: list[bytes] = []
        ends: list[dict[str, Any]] = [json.loads(writer.hear()) for writer in writers]
        self._ledger.catch_up()
        for end in ends:
            flying = end["flying"]
            kill.late += end["counts"].get("late", 0)
            kill.commits += sum(stage for _, stage in flying)
            kill.stores += sum(not stage for _, stage in flying)
            keys += self._ledger.note_flying(end["space"], [chain for chain, _ in flying])
        self._snapshot = take(self._arena, keys)
        kill.held = self._snapshot.num_held
        kill.begun, kill.torn = self._snapshot.begun, self._snapshot.torn
        self.tally.kills.append(kill)

    # --- old engines --------------------------------------------------------------------------

    def _hold(self, server: ServerProcess) -> None:
        """Has an engine retrieve what will be evicted first, and stops it before it reads."""
        chains = list(self._ledger.chains[MAIN])[:HELD_CHAINS]
        words = [server.url, server.side_path, *map(str, chains)]
        self._reader = Child("tests.restarts.reader", words)
        assert self._reader.hear() == "ready"
        self._reader.signal(signal.SIGSTOP)

    def _read_late(self, checker: Engine, kill: Kill) -> None:
        """Lets the engine of a former server go on; awaits that nothing is sealed any more."""
        if self._reader is None:
            return
        self._reader.signal(signal.SIGCONT)
        self._reader.tell("")
        said = json.loads(self._reader.hear())
        kill.old_read, kill.old_wrong = said["read"], said["wrong"]
        self._say(f"an old engine read {kill.old_read} pages, {kill.old_wrong} of them wrong")
        self._end_reader()
        assert wait_until(lambda: _stats(checker)["parties_awaited"] == 0), "a party is awaited"

    def _end_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _stats(engine: Engine) -> dict[str, int]:
    return engine.wire.call(Stats(), StatsReply).values

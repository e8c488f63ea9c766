"""An engine in the middle of a save or a load, to which something happens.

``python -m tests.faults.inflight save|load ...``: stands in the middle when it says ``ready``, then
obeys one word a line and answers each with one line. The test stops, continues and kills it.
Built on the wire client; runs in a process of its own, ``InFlight`` in the pytest process.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from typing import Any

import numpy as np

from protocol.errors import ReplyError
from protocol.messages import Cancel, EndSession, StoreReply, Unregister
from tests.faults import bystander
from tests.faults.held import HeldChild
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

NUM_CHUNKS = 64
_SILENCE_S = 2.0
_STORE = 900


def content(seed: int, page_bytes: int) -> Any:
    """What the chunks of a seed hold: uint8[NUM_CHUNKS, page_bytes]."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (NUM_CHUNKS, page_bytes), dtype=np.uint8)


def say(line: str) -> None:
    print(line, flush=True)


class Child:
    """One engine: ``seed`` names keys and bytes of what it saves or loads."""

    def __init__(self, url: str, side_path: str, model: str, seed: int) -> None:
        self.seed = seed
        self.engine = Engine(url, side_path, make_namespace(model=model), NUM_CHUNKS)
        self.engine.register()
        self.engine.wire.on_wait = self._pump
        self.keys = make_keys(seed, NUM_CHUNKS)
        self.asked: list[int] = []
        self.copied = 0

    def _pump(self) -> None:
        try:
            self.engine.pump()
        except (ReplyError, OSError):  # its session, or the server, is gone
            self.engine.wire.on_wait = None

    # --- words --------------------------------------------------------------------------------

    def save(self) -> None:
        self.engine.pages[:] = content(self.seed, self.engine.page_bytes)
        pages = list(range(NUM_CHUNKS))
        self.asked.append(bystander.submit_store(self.engine, self.keys, pages, _STORE))
        say("ready")

    def save_hurriedly(self) -> None:
        """A save that is of no use after a short while."""
        self.engine.pages[:] = content(self.seed, self.engine.page_bytes)
        pages = list(range(NUM_CHUNKS))
        seq = bystander.submit_store(self.engine, self.keys, pages, _STORE, timeout_s=0.7)
        self.asked.append(seq)
        say("ready")

    def load(self) -> None:
        found = self.engine.lookup(self.keys)
        assert found.ready == NUM_CHUNKS, found
        self.slots = bystander.retrieve(self.engine, found.lease, found.ready)
        self.first = bystander.read_slots(self.engine, self.slots[: NUM_CHUNKS // 2])
        say("ready")

    def cancel(self) -> None:
        self.asked.append(
            self.engine.wire.submit(Cancel(session=self.engine.session, store=_STORE))
        )
        say("sent")

    def end(self) -> None:
        body = EndSession(session=self.engine.session, request=1)
        self.asked.append(self.engine.wire.submit(body))
        say("sent")

    def unregister(self) -> None:
        self.asked.append(self.engine.wire.submit(Unregister(session=self.engine.session)))
        say("sent")

    def hush(self) -> None:
        """From now on it asks a server that is gone nothing more by itself."""
        self.engine.wire.on_wait = None
        say("hushed")

    def settle(self) -> None:
        """All that it asked, one word each: ``copied N``, ``done``, an error, or ``silent``."""
        words = []
        for seq in self.asked:
            try:
                reply = self.engine.wire.reply(seq, _SILENCE_S)
            except (TimeoutError, ConnectionError, BrokenPipeError):
                words.append("silent")
                continue
            if isinstance(reply.body, StoreReply):
                self.copied = reply.body.copied
                words.append(f"copied {self.copied}")
            else:
                words.append(reply.error.code.name if reply.error else "done")
        say(",".join(words))

    def commit(self) -> None:
        """COMMITs what was copied; says how much is published."""
        try:
            say(str(self.engine.commit(_STORE, self.copied).published))
        except ReplyError as error:
            say(error.code.name)

    def load_nothing(self) -> None:
        """Is there, registered."""
        say("ready")

    def hold(self) -> None:
        """Runs nothing of Python for a while, in any thread, as some libraries do."""
        ctypes.PyDLL(None).usleep(4_000_000)
        say("held")

    def saves(self) -> None:
        """A save from beginning to end, under keys of its own."""
        keys = make_keys(self.seed + 9000, NUM_CHUNKS)
        saved = wait_until(lambda: bystander.is_saved(self.engine, keys), 10, 0.05)
        say("saved" if saved else "not saved")

    def fork(self) -> None:
        """Starts a process that inherits every descriptor; says its number."""
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        say(str(pid))

    def finish(self) -> None:
        """The other half of the load; all bytes and all generations."""
        rest = bystander.read_slots(self.engine, self.slots[NUM_CHUNKS // 2 :])
        expected = content(self.seed, self.engine.page_bytes)
        assert np.array_equal(np.concatenate([self.first, rest]), expected), "wrong bytes"
        for slot in self.slots:
            view = self.engine.extents[int(slot["extent"])].view
            at = 4096 + 128 * int(slot["slot"]) + 56
            now = int.from_bytes(view[at : at + 8].tobytes(), "little")
            assert now == int(slot["generation"]), "reused under a reader"
        say("right")


class InFlight(HeldChild):
    """The test's grip on one."""

    def __init__(self, server: ServerProcess, model: str, direction: str, seed: int) -> None:
        arguments = [direction, server.url, server.side_path, model, str(seed)]
        super().__init__("tests.faults.inflight", arguments)
        assert self.hear() == "ready"

    def tell(self, word: str) -> str:
        """Says a word; returns the answer, or nothing if it died of it."""
        self.say(word)
        return self.hear()


def main(direction: str, url: str, side_path: str, model: str, seed: str) -> None:
    child = Child(url, side_path, model, int(seed))
    getattr(child, direction)()
    poller = select.poll()
    poller.register(sys.stdin, select.POLLIN)
    while True:
        if not poller.poll(20):
            if child.engine.wire.on_wait is not None:
                child.engine.wire.on_wait()
            continue
        word = sys.stdin.readline().strip()  # one at a time: each is answered first
        if not word:
            return
        getattr(child, word)()


if __name__ == "__main__":
    main(*sys.argv[1:])

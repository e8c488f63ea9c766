"""A process that saves chains as fast as it is answered, in one server after another.

    python -m tests.restarts.writer NUMBER LOG

Each line of its input is ``URL SIDE SPACE PAUSE``: it connects there, says ``busy`` once it was
answered, and stores until that server is gone. Then it lets go of all it had mapped and prints as
JSON what was in flight. Answered COMMITs go to the log before anything else is done. Knows the wire
client. A child of the conductor.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zmq

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import Memory, pack_pages
from protocol.messages import Commit, CommitReply, Store, StoreReply
from tests.restarts.content import (
    CHAIN_CHUNKS,
    LOG_DTYPE,
    as_bytes,
    keys_of,
    model,
    page_bytes,
    pages,
)
from tests.wire.client import Engine, expect, make_namespace

WINDOW = 4
"""STOREs on their way at a time."""


@dataclass
class Saving:
    """One chain on its way: its number, its pages' place in the pool, and the awaited answer."""

    chain: int
    place: int
    store: int
    seq: int
    is_commit: bool = False


class Writer:
    """What outlives servers.

    Args:
        number: of this process; its chains begin with it.
        log: where answered COMMITs are written.
    """

    def __init__(self, number: int, log: str) -> None:
        self._next_chain = (number << 32) + 1
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._former: list[tuple[bytes, bytes]] = []
        self.counts: Counter[str] = Counter()

    def live(self, url: str, side_path: str, space: int, pause_s: float) -> list[list[int]]:
        """Stores in one server until it is gone; returns chains in flight, and their stage."""
        flying: deque[Saving] = deque()
        engine = self._connect(url, side_path, space)
        try:
            while not self._register(engine):
                self._let_go(engine)
                engine = self._connect(url, side_path, space)
            engine.wire.on_wait = _watch(engine, engine.pump)
            places = list(range(WINDOW))
            while True:
                engine.pump()  # while answers come at once, nothing is awaited
                while places:
                    flying.append(self._store(engine, space, places.pop()))
                self._answer(engine, space, flying, places)
                time.sleep(pause_s)
        except (ConnectionError, TimeoutError, BrokenPipeError, zmq.ZMQError):
            return [[one.chain, int(one.is_commit)] for one in flying]
        finally:
            self._let_go(engine)
            del engine
            gc.collect()

    def _connect(self, url: str, side_path: str, space: int) -> Engine:
        kind = make_namespace(page_bytes(space), model(space))
        engine = Engine(url, side_path, kind, num_pages=WINDOW * CHAIN_CHUNKS)
        engine.wire.on_wait = _watch(engine, lambda: None)
        return engine

    def _let_go(self, engine: Engine) -> None:
        self._former.append((engine.hello.epoch, engine.welcome.token))
        engine.extents.clear()
        engine.close()

    def _register(self, engine: Engine) -> bool:
        """Registers; whether it was answered in time."""
        for epoch, token in self._former[-2:]:
            if epoch != engine.hello.epoch:
                engine.side.send(side.pack(side.Drained(epoch=epoch, token=token)))
        memory: Memory | None = None
        was_refused = False
        while True:
            try:
                memory = memory or engine.share()
                engine.register(memory)
            except TimeoutError:
                self.counts["late"] += 1
                return False
            except ReplyError as error:
                # A server keeps the pool of a registration that it refused, and lets it be named
                # again once its copier has let go of it.
                is_let_go = was_refused and error.code == ErrorCode.POOL_INVALID
                if not (error.retryable or is_let_go):
                    raise
                was_refused = True
                self.counts["refused"] += 1
                time.sleep(0.05)
            else:
                return True

    def _store(self, engine: Engine, space: int, place: int) -> Saving:
        chain, self._next_chain = self._next_chain, self._next_chain + 1
        keys = keys_of(space, chain, CHAIN_CHUNKS)
        begin = place * CHAIN_CHUNKS
        content = pages(keys, engine.page_bytes)
        engine.pages[begin : begin + CHAIN_CHUNKS] = content.view(np.uint8)
        body = Store(
            session=engine.session,
            store=chain & 0xFFFFFFFF,
            request=chain & 0xFFFFFFFF,
            shard=engine.shard,
            start=0,
            parent=b"",
            keys=b"".join(as_bytes(keys)),
            pages=pack_pages(list(range(begin, begin + CHAIN_CHUNKS))),
        )
        return Saving(chain, place, body.store, engine.wire.submit(body))

    def _answer(self, engine: Engine, space: int, flying: deque[Saving], places: list[int]) -> None:
        """Takes the oldest answer; a STORE is followed by its COMMIT."""
        one = flying[0]
        try:
            reply = engine.wire.reply(one.seq)
            if one.is_commit:
                count = expect(reply, CommitReply).published
                row = np.array([(one.chain, space, count)], LOG_DTYPE)
                os.write(self._log, row.tobytes())
                self.counts["committed"] += count
            else:
                copied = expect(reply, StoreReply).copied
                if copied:
                    body = Commit(session=engine.session, store=one.store, count=copied)
                    flying.popleft()
                    flying.append(
                        Saving(one.chain, one.place, one.store, engine.wire.submit(body), True)
                    )
                    self._say_busy()
                    return
                self.counts["no_room"] += 1
                time.sleep(0.01)
        except ReplyError as error:
            if not error.retryable:
                raise
            self.counts["refused"] += 1
            time.sleep(0.01)
        flying.popleft()
        places.append(one.place)
        self._say_busy()

    def _say_busy(self) -> None:
        if not self.counts["busy"]:
            self.counts["busy"] = 1
            print("busy", flush=True)


def _watch(engine: Engine, work: Callable[[], None]) -> Callable[[], None]:
    """Does some work while an answer is awaited; notices the server's end even amid that."""
    poller = select.poll()
    poller.register(engine.side.socket, 0)  # hang-ups are told unasked

    def watch() -> None:
        if poller.poll(0):
            raise ConnectionError("closed by the server")
        work()

    return watch


def main() -> None:
    """One server for each line of the input."""
    writer = Writer(int(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        url, side_path, space, pause_s = line.split()
        writer.counts.clear()
        flying = writer.live(url, side_path, int(space), float(pause_s))
        told = {"space": int(space), "flying": flying, "counts": dict(writer.counts)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()

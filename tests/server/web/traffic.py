"""Engines of a script that count what they do: what every page has to show, to the last chunk.

Knows the wire client. Runs in the pytest process, or in a thread of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.messages import LookupReply, QueryPrefetchStatus
from protocol.namespace import Namespace
from tests.wire.client import Engine, make_keys
from tests.wire.process import ServerProcess


@dataclass
class Counted:
    """What an engine itself counted.

    Attributes:
        lookups: LOOKUPs it sent.
        asked: chunks that they named.
        hit: chunks that the answers offered.
        loaded: chunks that it named for loading, and read; some of them twice for one LOOKUP.
        requested_tokens: of the chunks asked for.
        hit_tokens: of those offered.
        loaded_tokens: of those loaded, each once for the LOOKUP that offered it.
        stored: chunks that the answers to STORE say were copied.
        stores: those STOREs.
        published: chunks that the answers to COMMIT say were published.
        copied_bytes: of the stored chunks.
    """

    lookups: int = 0
    asked: int = 0
    hit: int = 0
    loaded: int = 0
    requested_tokens: int = 0
    hit_tokens: int = 0
    loaded_tokens: int = 0
    stored: int = 0
    stores: int = 0
    published: int = 0
    copied_bytes: int = 0


@dataclass
class Script:
    """An engine that stores and loads, and counts.

    Attributes:
        engine: registered.
        counted: so far.
    """

    engine: Engine
    counted: Counted = field(default_factory=Counted)

    def save(self, keys: list[bytes], pages: list[int]) -> None:
        """STOREs and COMMITs."""
        store, reply = self.engine.store(keys, pages)
        self.counted.stores += 1
        self.counted.stored += reply.copied
        self.counted.copied_bytes += reply.copied * self.engine.page_bytes
        if reply.copied:
            self.counted.published += self.engine.commit(store, reply.copied).published

    def load(self, keys: list[bytes], part: int | None = None) -> int:
        """LOOKs up and loads what is offered, or the first part of it; returns what was offered."""
        found = self.engine.lookup(keys)
        self.counted.lookups += 1
        self.counted.asked += len(keys)
        self.counted.hit += found.ready
        tokens = self.engine.namespace.chunk_tokens
        self.counted.requested_tokens += len(keys) * tokens
        self.counted.hit_tokens += found.ready * tokens
        if found.ready:
            self.engine.pump()
            count = min(found.ready, part or found.ready)
            self.engine.read(found.lease, count)
            self.counted.loaded += count
            self.counted.loaded_tokens += count * tokens
            if part:  # its first chunk is asked for again, as if the answer had been lost
                self.engine.read(found.lease, 1)
                self.counted.loaded += 1
            self.engine.release(found.lease)
        return found.ready

    def await_rest(self) -> int:
        """Waits for what tiers bring after a LOOKUP, and loads all; returns what is there then."""
        engine = self.engine
        query = QueryPrefetchStatus(session=engine.session, request=1, wait_ms=20_000)
        found = engine.wire.call(query, LookupReply, 25)
        engine.read(found.lease, found.ready)
        engine.release(found.lease)
        return found.ready

    def play(self, prompts: int, chunks: int = 12, seed: int = 1) -> None:
        """Stores prompts and asks for each, whole and with a tail that is not there; for others."""
        for number in range(seed, seed + prompts):
            keys = make_keys(number, chunks)
            self.save(keys, [(number + page) % self.engine.num_pages for page in range(chunks)])
            self.load(keys)
            self.load([*keys, *make_keys(10_000 + number, 4)], part=chunks // 2)
            if number % 3 == 0:
                self.load(make_keys(20_000 + number, chunks))


def scripted(server: ServerProcess, namespace: Namespace | None = None) -> Script:
    """A registered engine; the caller closes it."""
    engine = Engine(server.url, server.side_path, namespace)
    engine.pump_while_waiting()
    engine.register()
    return Script(engine)

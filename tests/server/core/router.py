"""A model of a router: it follows the event stream, and holds what it was told.

``truth`` says from the index's cells alone, in the plainest way, what a server holds; whenever the
router has nothing left to ask, both must be the same.
"""

from __future__ import annotations

from protocol.events import CLEARED, REMOVED, STORED, KvEvent
from protocol.ids import ID_BYTES
from server.core.dispatch import Core
from server.core.index import ROOT
from server.eventstream import Begun, Current, EventReader, Page, Told
from tests.server.core.engine import Engine

Known = dict[bytes, dict[bytes, bytes]]
"""Of each namespace, the key of each chunk and of the one before it."""


class Router:
    """Follows one server through one process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.reader = EventReader(wait_ms=0)
        self.known: Known = {}
        self.num_begun = 0
        self.kinds: list[str] = []

    def step(self) -> None:
        """One question and its answer."""
        for told in self.reader.take(self.engine.ask(self.reader.ask())):
            self.apply(told)

    def catch_up(self) -> None:
        self.step()
        for _ in range(10_000):
            if self.reader.is_current:
                return
            self.step()
        raise AssertionError("it never gets to the end of the stream")

    def apply(self, told: Told) -> None:
        if isinstance(told, Begun):
            self.known = {}
            self.num_begun += 1
        elif isinstance(told, Page):
            self.known.setdefault(told.fingerprint, {}).update(told.chunks)
        elif isinstance(told, KvEvent):
            self._event(told)
        else:
            assert isinstance(told, Current)

    def _event(self, event: KvEvent) -> None:
        self.kinds.append(event.kind)
        mine = self.known.setdefault(event.fingerprint, {})
        keys = [event.keys[at : at + ID_BYTES] for at in range(0, len(event.keys), ID_BYTES)]
        if event.kind == STORED:
            for parent, key in zip([event.parent, *keys], keys, strict=False):
                mine[key] = parent
        elif event.kind == REMOVED:
            for key in keys:
                mine.pop(key, None)
        else:
            assert event.kind == CLEARED
            assert not keys
            mine.clear()

    def holds(self) -> Known:
        return {space: dict(chunks) for space, chunks in self.known.items() if chunks}


def truth(core: Core) -> Known:
    """What a server holds, by its cells."""
    found: Known = {}
    for space, owner in core._state.roster.owners.items():
        index = owner.index
        full = [shard for shard in range(owner.num_shards) if not owner.window_tokens[shard]]
        chunks = {}
        for node in index.nodes():
            held = [index.holds(node, shard) for shard in full or range(owner.num_shards)]
            if all(held) if full else any(held):
                above = index.parent[node]
                chunks[index.key(node)] = b"" if above == ROOT else index.key(above)
        if chunks:
            found[bytes(space)] = chunks
    return found

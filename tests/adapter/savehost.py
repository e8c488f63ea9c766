"""A host in miniature, driven at random, to try the two-phase saves against.

The host allocates pages from LIFO lists, one for each layer group, queues forwards that run later,
in order and layer by layer, chunks prefills, trims chunks late, slides windows, lets hidden dummies
write to free pages, generates with or without an overlap lag, finishes, cancels without a callback,
ends all requests after a forward that failed, as early hosts do, with one, and hands freed pages
out again at once. ``SaveServer`` reads pages one by one at any time between a STORE and its answer.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

from adapter.geometry import Geometry
from adapter.layersaves import LayerSaves
from adapter.metadata import ConnectorMetadata
from adapter.naming import last_word
from adapter.reports import build_metadata
from adapter.requests import RequestTable
from adapter.requeststate import RequestState
from adapter.ring import StagingRing
from adapter.savebook import SaveBook
from adapter.saveledger import SaveLedger
from protocol.ids import ID_BYTES
from tests.adapter.hostlike import FakeMark, Output, Report, facts, geometry, tokens
from tests.adapter.saveserver import LAYERS, SaveServer

SIZE = 4

Write = tuple[int, int, Any]
"""Layer group, page, value."""


@dataclass
class Live:
    """A request as the host sees it; pages for each layer group, -1 behind a window."""

    request_id: int
    prompt: list[int]
    all_tokens: list[int]
    num_generated: int
    state: RequestState
    pages: list[list[int]]
    cursor: int
    reported: bool = False
    known: int = 0
    reported_pages: int = 0


class SaveHost:
    """The miniature; ``step`` does one random thing."""

    def __init__(
        self,
        seed: int,
        chunk: int = 1,
        num_pages: int = 24,
        windows: tuple[int, ...] = (0,),
        ring_chunks: int = 0,
        by_layer: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.lag = self.rng.randrange(2)  # 0: the overlap scheduler is off
        self.geometry = geometry(SIZE, chunk, num_pages, windows)
        self.windows = windows
        self.ring = small_ring(self.geometry, ring_chunks) if ring_chunks else None
        self.ledger = SaveLedger(self.geometry, 50, self.ring)
        self.layers = LayerSaves(self.ledger, range(LAYERS)) if by_layer else None
        self.book = SaveBook(self.ledger, self.layers)
        self.table = RequestTable(self.geometry)
        self.contents = [
            [[("poison", page)] * LAYERS for page in range(num_pages)] for _ in windows
        ]
        self.server = SaveServer(self.rng, self.ledger, self.layers, self.contents, chunk)
        self.free = [list(range(num_pages)) for _ in windows]
        self.live: list[Live] = []
        self.holding: dict[int, list[list[int]]] = {}
        self.stream: deque[tuple[int, list[Write], FakeMark]] = deque()
        self.last_mark: FakeMark | None = None
        self.iteration = 0
        self.next_id = 1
        self.announced: list[int] = []

    def step(self) -> None:
        serve = self.server.serve
        act = self.rng.choice(
            (self.iterate, self.iterate, self.run_layer, serve, serve, self.server.settle)
        )
        act()
        self.server.check_ring()

    def finish_all(self) -> None:
        """Everything ends; nothing may be left of it."""
        for one in list(self.live):
            self.table.ended.append(one.state.key)
            self._release(one)
        self.iteration += 200  # those cancelled without a callback are forgotten in time
        self.server.now_s += 200.0
        self.bind(Output())
        for _ in range(60):
            self.run_layer()
            self.server.serve()
            self.server.settle()
            self.collect()
        self.bind(Output())
        assert self.holding == {}
        assert self.ledger.num_held_pages == 0
        assert self.ring is None or self.ring.num_lent == 0

    # --- iterations ---

    def iterate(self) -> None:
        self.iteration += 1
        self.server.now_s += 0.01
        poison: list[Write] = []
        if len(self.live) < 3 and self.rng.random() < 0.5:
            self._admit(poison)
        batch = [
            one for one in self.live if self.rng.random() < 0.9 and self._has_room(one, poison)
        ]
        output, writes = Output(), []
        for one in batch:
            scheduled = self._schedule(one)
            trimmed = (
                self.rng.choice((0, 0, 0, 1)) if one.cursor + scheduled < len(one.prompt) else 0
            )
            self._report(one, scheduled, output)
            writes.append((one, scheduled - trimmed))
        metadata = self.bind(output)
        failed = not self.lag and batch and self.rng.random() < 0.05
        if failed:
            self._fail(poison, writes)
        elif batch and self.rng.random() < 0.9:  # else the forward is skipped after all
            self._launch(poison, writes, metadata.may_fire)
            self.book.launched()
        elif poison:
            self._launch(poison, [], may_fire=False)
        while len(self.stream) > self.lag * LAYERS:  # the samples of the batch before are awaited
            self.run_layer()
        gone = [one for one in self.live if failed or self._is_over(one)]
        for one in gone:
            self._finish(one)
        for one in list(self.live):
            if self.rng.random() < 0.04:
                self._release(one)  # cancelled, without a callback
        self.collect()

    def bind(self, output: Output) -> ConnectorMetadata:
        metadata = build_metadata(self.table, output, self.iteration, self.server.now_s)
        self.book.bound(metadata, self.last_mark)
        return metadata

    def collect(self) -> None:
        self.book.finished(self.announced, self.last_mark, self.server.now_s)
        self.announced = []
        for request_id in self.ledger.take_saved():
            self._give_back(self.holding.pop(request_id))  # KeyError: unknown or repeated

    def _is_over(self, one: Live) -> bool:
        full = len(one.all_tokens) >= len(one.prompt) + one.num_generated
        return full or (one.reported and self.rng.random() < 0.03)

    # --- pages ---

    def _admit(self, poison: list[Write]) -> None:
        prompt = tokens(self.rng.randrange(1, 30), seed=self.rng.randrange(4))
        need = -(-len(prompt) // SIZE)
        if need + 2 > min(len(free) for free in self.free):
            return
        pages = [
            [self._hand_out(group, poison) for _ in range(need)] for group in range(len(self.free))
        ]
        state = self.table.admit(facts(self.next_id, prompt), self.iteration, self.server.now_s)
        state.allocated = True
        generated = self.rng.randrange(1, 10)
        self.live.append(Live(self.next_id, prompt, list(prompt), generated, state, pages, 0))
        self.next_id += 1

    def _hand_out(self, group: int, poison: list[Write]) -> int:
        page = self.free[group].pop()
        poison.append((group, page, ("poison", self.iteration)))
        return page

    def _has_room(self, one: Live, poison: list[Write]) -> bool:
        """Whether the next token has pages; without them the request waits."""
        needed = one.cursor // SIZE >= len(one.pages[0])
        if needed and all(self.free):
            for group, pages in enumerate(one.pages):
                pages.append(self._hand_out(group, poison))
        return one.cursor // SIZE < len(one.pages[0])

    def _slide(self, one: Live) -> None:
        """Pages that no later token looks at may go while the request lives."""
        for group, window in enumerate(self.windows):
            if not window or self.rng.random() < 0.3:
                continue
            pages = one.pages[group]
            for block in range(max(0, one.cursor - window + 1) // SIZE):
                if block < len(pages) and pages[block] >= 0:
                    self.free[group].append(pages[block])
                    pages[block] = -1

    def _give_back(self, pages: list[list[int]]) -> None:
        for free, group in zip(self.free, pages, strict=True):
            free += [page for page in group if page >= 0]

    # --- reports and forwards ---

    def _schedule(self, one: Live) -> int:
        if one.cursor < len(one.prompt):
            return min(self.rng.randrange(1, 12), len(one.prompt) - one.cursor)
        return 1

    def _report(self, one: Live, scheduled: int, output: Output) -> None:
        is_context = one.cursor < len(one.prompt)
        known = len(one.all_tokens) - (0 if is_context else self.lag)
        known = max(len(one.prompt), known)
        computed = one.cursor if is_context else known - 1
        fresh = one.all_tokens[one.known : known]
        self._slide(one)
        rows = [pages[one.reported_pages :] for pages in one.pages]
        one.known, one.reported_pages = known, len(one.pages[0])
        flat, grouped = (rows[0], []) if len(rows) == 1 else ([], rows)
        report = Report(one.request_id, fresh, flat, computed, scheduled, grouped)
        (output.cached_requests if one.reported else output.new_requests).append(report)
        one.reported = True

    def _launch(self, poison: list[Write], work: list[tuple[Live, int]], may_fire: bool) -> None:
        writes = list(poison)
        if self.rng.random() < 0.3:  # a dummy that nobody is told of takes free pages for a while
            value = ("dummy", self.iteration)
            writes += [(at, page, value) for at, free in enumerate(self.free) for page in free[-3:]]
        for one, count in work:
            stop = min(one.cursor + count, len(one.pages[0]) * SIZE)
            chain = self._keys(one)
            for block in range(one.cursor // SIZE, -(-stop // SIZE)):
                full = (block + 1) * SIZE <= stop
                content: Any = chain[block] if full else ("part", one.request_id, stop)
                writes += self._into(one, block, content)
            one.cursor = stop
            if one.cursor >= len(one.prompt):
                one.all_tokens.append(self.rng.randrange(100))
        hooks = self.rng.random() < 0.9
        for layer in range(LAYERS):
            mark = FakeMark(is_done=False)
            self.stream.append((layer, writes, mark))
            if self.layers is not None and work and may_fire and (hooks or layer == 0):
                self.layers.layer_done(layer, mark)
            self.last_mark = mark

    def _fail(self, poison: list[Write], work: list[tuple[Live, int]]) -> None:
        """A forward that raises leaves anything in its pages; nobody marks its end."""
        writes = list(poison)
        for one, count in work:
            stop = min(one.cursor + count, len(one.pages[0]) * SIZE)
            for block in range(one.cursor // SIZE, -(-stop // SIZE)):
                writes += self._into(one, block, ("failed", self.iteration))
        for layer in range(LAYERS):
            self._write(layer, writes)

    def _into(self, one: Live, block: int, value: Any) -> list[Write]:
        """Writes to a block's page in every layer group that still has one."""
        pages = [(group, pages[block]) for group, pages in enumerate(one.pages)]
        return [(group, page, value) for group, page in pages if page >= 0]

    def _write(self, layer: int, writes: list[Write]) -> None:
        for group, page, value in writes:
            self.contents[group][page] = [
                value if at == layer else old for at, old in enumerate(self.contents[group][page])
            ]

    def _keys(self, one: Live) -> list[bytes]:
        state = RequestTable(self.geometry).admit(facts(1, one.all_tokens), 1, 0.0)
        blob = state.chunk_keys(0, len(one.all_tokens) // SIZE, 1)
        return [blob[at : at + ID_BYTES] for at in range(0, len(blob), ID_BYTES)]

    def run_layer(self) -> None:
        if self.stream:
            layer, writes, mark = self.stream.popleft()
            self._write(layer, writes)
            mark.is_done = True

    # --- ends ---

    def _finish(self, one: Live) -> None:
        self._slide(one)  # behind what was launched last; no report says so
        state, grouped = one.state, one.pages if len(one.pages) > 1 else []
        keep = (
            state.reported
            and len(one.all_tokens) > len(one.prompt)
            and self.book.hold(
                state.key,
                one.request_id,
                sum(page >= 0 for pages in one.pages for page in pages),
                last_word(state, one.all_tokens, self.geometry, grouped),
            )
        )
        self.table.finish(state)
        if keep:
            self.holding[one.request_id] = one.pages
            self.announced.append(one.request_id)
            self.live.remove(one)
        else:
            self.table.ended.append(state.key)
            self._release(one)

    def _release(self, one: Live) -> None:
        self._give_back(one.pages)
        self.live.remove(one)


def small_ring(geo: Geometry, chunks: int) -> StagingRing:
    """A ring of a few chunks for each layer group."""
    page_bytes = sum(group.page_bytes for group in geo.groups)
    return StagingRing(geo, num_bytes=chunks * geo.chunk_blocks * page_bytes)

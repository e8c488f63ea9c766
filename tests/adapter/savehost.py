"""A host and a server in miniature, driven at random, to try the two-phase saves against.

The host allocates pages from a LIFO list, queues forwards that run later and in order, chunks
prefills, trims chunks late, lets hidden dummies write to free pages, generates with or without an
overlap lag, finishes, cancels without a callback, ends all requests after a forward that failed,
as early hosts do, with one, and hands freed pages out again at once. The server
reads pages one by one at any time between a STORE and its answer. What it publishes must be what
the key says; ``publish`` checks that.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapter.naming import last_word
from adapter.reports import build_metadata
from adapter.requests import RequestTable
from adapter.requeststate import RequestState
from adapter.savebook import SaveBook
from adapter.saveflow import SaveFlow, StoreOrder
from adapter.saveledger import SaveLedger
from protocol.ids import ID_BYTES
from protocol.messages import StopReason
from tests.adapter.hostlike import FakeMark, Output, Report, facts, geometry, tokens

SIZE = 4


@dataclass
class Live:
    """A request as the host sees it."""

    request_id: int
    prompt: list[int]
    all_tokens: list[int]
    num_generated: int
    state: RequestState
    pages: list[int]
    cursor: int
    reported: bool = False
    known: int = 0
    reported_pages: int = 0


@dataclass
class Copy:
    """A STORE the server works on."""

    order: StoreOrder
    store: int
    held: int
    unread: list[int]
    read: dict[int, Any] = field(default_factory=dict)


class SaveHost:
    """The miniature; ``step`` does one random thing."""

    def __init__(self, seed: int, chunk: int = 1, num_pages: int = 24) -> None:
        self.rng = random.Random(seed)
        self.lag = self.rng.randrange(2)  # 0: the overlap scheduler is off
        self.geometry = geometry(SIZE, chunk, num_pages)
        self.chunk = chunk
        self.ledger = SaveLedger(num_pages, chunk, 50)
        self.book, self.flow = SaveBook(self.ledger), SaveFlow(self.ledger)
        self.table = RequestTable(self.geometry)
        self.contents: list[Any] = [("poison", page) for page in range(num_pages)]
        self.free = list(range(num_pages))
        self.live: list[Live] = []
        self.holding: dict[int, list[int]] = {}
        self.stream: deque[tuple[list[tuple[int, Any]], FakeMark]] = deque()
        self.last_mark: FakeMark | None = None
        self.copies: dict[int, Copy] = {}
        self.copied: dict[int, tuple[StoreOrder, int, dict[int, Any]]] = {}
        self.published: dict[bytes, Any] = {}
        self.num_published = 0
        self.iteration = 0
        self.now_s = 0.0
        self.next_id, self.next_store = 1, 1
        self.announced: list[int] = []

    def step(self) -> None:
        act = self.rng.choice(
            (self.iterate, self.iterate, self.run_forward, self.serve, self.serve, self.settle)
        )
        act()

    # --- the host ---

    def iterate(self) -> None:
        self.iteration += 1
        self.now_s += 0.01
        poison: list[tuple[int, Any]] = []
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
        metadata = build_metadata(self.table, output, self.iteration, self.now_s)
        self.book.bound(metadata, self.last_mark)
        failed = not self.lag and batch and self.rng.random() < 0.05
        if failed:
            self._fail(poison, writes)
        elif batch and self.rng.random() < 0.9:  # else the forward is skipped after all
            self._launch(poison, writes)
        elif poison:
            self._launch(poison, [])
        while len(self.stream) > self.lag:  # the samples of the batch before are awaited
            self.run_forward()
        gone = [one for one in self.live if failed or self._is_over(one)]
        for one in gone:
            self._finish(one)
        for one in list(self.live):
            if self.rng.random() < 0.04:
                self._release(one)  # cancelled, without a callback
        self.book.finished(self.announced, self.last_mark, self.now_s)
        self.announced = []
        for request_id in self.ledger.take_saved():
            self.free += self.holding.pop(request_id)  # KeyError: unknown or repeated

    def _is_over(self, one: Live) -> bool:
        full = len(one.all_tokens) >= len(one.prompt) + one.num_generated
        return full or (one.reported and self.rng.random() < 0.03)

    def _admit(self, poison: list[tuple[int, Any]]) -> None:
        prompt = tokens(self.rng.randrange(1, 30), seed=self.rng.randrange(4))
        need = -(-len(prompt) // SIZE)
        if need + 2 > len(self.free):
            return
        pages = [self._hand_out(poison) for _ in range(need)]
        state = self.table.admit(facts(self.next_id, prompt), self.iteration, self.now_s)
        state.allocated = True
        generated = self.rng.randrange(1, 10)
        self.live.append(Live(self.next_id, prompt, list(prompt), generated, state, pages, 0))
        self.next_id += 1

    def _hand_out(self, poison: list[tuple[int, Any]]) -> int:
        page = self.free.pop()
        poison.append((page, ("poison", self.iteration)))
        return page

    def _has_room(self, one: Live, poison: list[tuple[int, Any]]) -> bool:
        """Whether the next token has a page; without one the request waits."""
        if one.cursor // SIZE >= len(one.pages) and self.free:
            one.pages.append(self._hand_out(poison))
        return one.cursor // SIZE < len(one.pages)

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
        pages = one.pages[one.reported_pages :]
        one.known, one.reported_pages = known, len(one.pages)
        report = Report(one.request_id, fresh, pages, computed, scheduled)
        (output.cached_requests if one.reported else output.new_requests).append(report)
        one.reported = True

    def _launch(self, poison: list[tuple[int, Any]], work: list[tuple[Live, int]]) -> None:
        writes = list(poison)
        if self.rng.random() < 0.3:  # a dummy that nobody is told of takes free pages for a while
            writes += [(page, ("dummy", self.iteration)) for page in self.free[-3:]]
        for one, count in work:
            stop = min(one.cursor + count, len(one.pages) * SIZE)
            chain = self._keys(one)
            for block in range(one.cursor // SIZE, -(-stop // SIZE)):
                full = (block + 1) * SIZE <= stop
                writes.append(
                    (one.pages[block], chain[block] if full else ("part", one.request_id, stop))
                )
            one.cursor = stop
            if one.cursor >= len(one.prompt):
                one.all_tokens.append(self.rng.randrange(100))
        mark = FakeMark(is_done=False)
        self.stream.append((writes, mark))
        self.last_mark = mark

    def _fail(self, poison: list[tuple[int, Any]], work: list[tuple[Live, int]]) -> None:
        """A forward that raises leaves anything in its pages; nobody marks its end."""
        for page, value in poison:
            self.contents[page] = value
        for one, count in work:
            stop = min(one.cursor + count, len(one.pages) * SIZE)
            for block in range(one.cursor // SIZE, -(-stop // SIZE)):
                self.contents[one.pages[block]] = ("failed", self.iteration)

    def _keys(self, one: Live) -> list[bytes]:
        state = RequestTable(self.geometry).admit(facts(1, one.all_tokens), 1, 0.0)
        blob = state.chunk_keys(0, len(one.all_tokens) // SIZE, 1)
        return [blob[at : at + ID_BYTES] for at in range(0, len(blob), ID_BYTES)]

    def run_forward(self) -> None:
        if self.stream:
            writes, mark = self.stream.popleft()
            for page, value in writes:
                self.contents[page] = value
            mark.is_done = True

    def _finish(self, one: Live) -> None:
        state = one.state
        keep = (
            state.reported
            and len(one.all_tokens) > len(one.prompt)
            and self.book.hold(
                state.key,
                one.request_id,
                len(one.pages),
                last_word(state, one.all_tokens, self.geometry),
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
        self.free += one.pages
        self.live.remove(one)

    # --- the server and the saver's thread ---

    def serve(self) -> None:
        for order in self.flow.next_stores(6):
            store, self.next_store = self.next_store, self.next_store + 1
            self.flow.sent(order.key, store)
            keys = self._order_keys(order)
            if order.first_chunk and order.parent not in self.published:
                self.flow.copied(order.key, 0, 0, StopReason.MISSING_PARENT, self.now_s)
                continue
            held = 0
            while held < len(keys) and keys[held] in self.published:
                held += 1
            pages = np.frombuffer(order.pages, dtype="<i4")[held * self.chunk :].tolist()
            self.copies[store] = Copy(order, store, held, pages)
        for store, copy in list(self.copies.items()):
            self.rng.shuffle(copy.unread)
            for _ in range(self.rng.randrange(0, 3)):
                if copy.unread:
                    page = copy.unread.pop()
                    copy.read[page] = self.contents[page]
            if not copy.unread:
                del self.copies[store]
                count = copy.order.num_chunks - copy.held
                self.copied[store] = (copy.order, copy.held, copy.read)
                self.flow.copied(copy.order.key, copy.held, count, StopReason.NONE, self.now_s)

    def settle(self) -> None:
        for it in self.flow.next_settlements(self.now_s):
            order, held, read = self.copied.pop(it.store)
            if it.count:
                self.publish(order, held, it.count, read)
            self.flow.settled(it.key, it.count, StopReason.NONE, self.now_s)

    def _order_keys(self, order: StoreOrder) -> list[bytes]:
        return [order.keys[at : at + ID_BYTES] for at in range(0, len(order.keys), ID_BYTES)]

    def publish(self, order: StoreOrder, held: int, count: int, read: dict[int, Any]) -> None:
        pages = np.frombuffer(order.pages, dtype="<i4").tolist()
        for at, key in enumerate(self._order_keys(order)[held : held + count], start=held):
            last = pages[(at + 1) * self.chunk - 1]
            assert read[last] == key, (order, at, read[last])
            for page in pages[at * self.chunk : (at + 1) * self.chunk]:
                assert isinstance(read[page], bytes), read[page]
            self.published[key] = True
            self.num_published += 1

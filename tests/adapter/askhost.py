"""A host that asks at random, and a server that counts what it is given back.

Drives the real scheduler through a real link: queries one to three times with any device match,
allocations whole or by chunk, offers taken up in part, waiting for loads, reports late or never,
cancelled and reset requests, replays under the same id, ends said twice or not at all. What was
promised must hold, and each chunk that was retrieved must be given back or handed to the workers,
once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adapter.engine import LOGGER, Prepared, Running
from adapter.geometry import Geometry
from adapter.journal import Journal
from adapter.loadmode import LoadMode
from adapter.metadata import ConnectorMetadata, LoadOrder
from adapter.pagememory import PageMemory
from adapter.saver import Saver
from adapter.scheduler import KvkeepConnectorScheduler
from adapter.sharing import Shared
from protocol.layout import SLOT_DTYPE
from protocol.messages import Body, LookupReply, Op, Released, RetrieveReply
from protocol.namespace import LayerGroup, Namespace
from tests.adapter.hostlike import (
    Args,
    ConnectorSettings,
    FakeRequest,
    Output,
    Report,
    geometry,
    tokens,
)
from tests.adapter.linking import joined_link
from tests.adapter.responder import PAGE_BYTES, ExtentFile, Responder, namespace, until
from tests.adapter.responder import geometry as extent_geometry

SIZE = 4


class Counting:
    """LOOKUP, RETRIEVE, RELEASE and END_SESSION of a server that holds what it likes.

    Attributes:
        retrieved: (lease, chunk) pairs handed out, and 1 for those that came back from us.
        open: leases that may still be retrieved, by request key.
        missing: share of window shards that are not held.
    """

    def __init__(self, server: Responder, num_groups: int) -> None:
        self.num_groups = num_groups
        self.ready: dict[bytes, int] = {}  # of all times: each lease has a name of its own
        self.begin()
        self.missing = 0.2 if num_groups > 1 else 0.0
        server.handlers |= {
            Op.LOOKUP: self.lookup,
            Op.RETRIEVE: self.retrieve,
            Op.RELEASE: self.release,
            Op.END_SESSION: self.end,
        }

    def begin(self) -> None:
        self.rng = random.Random(1)
        self.retrieved: dict[tuple[bytes, int], int] = {}
        self.open: dict[int, bytes] = {}

    def lookup(self, body: Any) -> Body:
        ready = self.rng.randrange(len(body.keys) // 16 + 1)
        self.open.pop(body.request, None)
        if not ready:
            return LookupReply(lease=b"", ready=0)
        lease = len(self.ready).to_bytes(16, "little")
        self.open[body.request], self.ready[lease] = lease, ready
        return LookupReply(lease=lease, ready=ready)

    def retrieve(self, body: Any) -> Body:
        assert body.start + body.count <= self.ready[body.lease]
        slots = np.zeros((body.count, self.num_groups), dtype=SLOT_DTYPE)
        slots["extent"], slots["generation"] = 1, 1
        slots["slot"] = np.arange(body.start, body.start + body.count)[:, None]
        for at in range(body.count):
            if self.rng.random() < self.missing:
                slots[at, 1] = 0
            self.retrieved[body.lease, body.start + at] = 0
        return RetrieveReply(slots=slots.tobytes(), num_shards=self.num_groups)

    def release(self, body: Any) -> Body:
        assert body.all_readers
        count = body.count or self.ready[body.lease]
        for chunk in range(body.start, body.start + count):
            if (body.lease, chunk) in self.retrieved:
                self.retrieved[body.lease, chunk] = 1  # again is harmless
        return Released(chunks=1)

    def end(self, body: Any) -> Body:
        self.open.pop(body.request, None)
        return Released(chunks=1)


@dataclass(eq=False)
class Asked:
    """One request as the host sees it."""

    request: FakeRequest
    is_fresh: bool
    pages: list[list[int]] = field(default_factory=list)
    matched: int = 0
    loaded: int = 0
    cursor: int = 0
    is_waiting: bool = False
    reported: int = -1


class AskHost:
    """The host; ``step`` is one iteration, ``end`` lets go of everything.

    Attributes:
        scheduler: the connector's.
        counting: the server.
        geometry: of the cache.
        live: requests.
        handed: (lease, chunk) pairs that the workers were told to load.
        counted: by request, tokens that the host counts on from this iteration on.
        has_layout: whether it is described by a V2 layout.
        is_chunked: whether prompts are computed in chunks and loads may be cancelled, so that
            offers may be taken up in part.
        running: the engine's parts.
        is_async: whether loads are waited for outside the batch.
    """

    def __init__(
        self, scheduler: KvkeepConnectorScheduler, counting: Counting, geo: Geometry
    ) -> None:
        self.scheduler = scheduler
        self.counting = counting
        self.geometry = geo
        self.has_layout = scheduler._engine.has_layout
        running = scheduler._engine.running
        assert running is not None
        self.running = running
        self.is_chunked = scheduler._engine.llm_args.enable_chunked_prefill  # type: ignore[attr-defined]
        self.is_async = running.load_mode is LoadMode.ASYNC
        self.begin()

    def begin(self) -> None:
        """Anew, as if nothing had been asked; what ``end`` left is nothing."""
        if self.scheduler._desk is not None:
            self.scheduler._desk.close()
        self.scheduler._running = None
        self.counting.begin()
        self.next_id = 1
        self.live: list[Asked] = []
        self.handed: Counter[tuple[bytes, int]] = Counter()
        self.counted: dict[int, int] = {}

    def step(self, rng: random.Random) -> None:
        output = Output()
        self.counted.clear()
        if len(self.live) < 4:
            self.live.append(self._new(rng))
        for one in list(self.live):
            self._act(one, rng, output)
        metadata = self.scheduler.build_connector_meta(output)
        self._check(metadata)

    def _new(self, rng: random.Random) -> Asked:
        self.next_id += 1
        # Ids come again, with other tokens or the same.
        request_id = rng.choice((self.next_id, rng.randrange(1, self.next_id + 1)))
        if any(one.request.request_id == request_id for one in self.live):
            request_id = self.next_id
        prompt = tokens(rng.randrange(1, 60), rng.randrange(3))
        return Asked(FakeRequest(request_id, prompt), request_id == self.next_id)

    def _act(self, one: Asked, rng: random.Random, output: Output) -> None:
        if one.is_waiting:
            if rng.random() < 0.3:  # asked again while it waits: nothing new is taken up
                self._query(one, one.matched)
            elif rng.random() < 0.4:
                one.is_waiting = False
                self._report(one, 0 if self.has_layout else one.loaded, output)
        elif one.reported >= 0:
            self._go_on(one, rng, output)
        elif not one.pages:
            self._admit(one, rng, output)
        elif rng.random() < 0.7:
            self._report(one, 0, output)
        elif rng.random() < 0.3:
            self._reset(one)
        if one in self.live and rng.random() < 0.05:
            self.live.remove(one)  # cancelled without a callback

    def _query(self, one: Asked, matched: int) -> int:
        count, is_async = self.scheduler.get_num_new_matched_tokens(one.request, matched)
        assert is_async is (self.is_async and count > 0)
        assert count >= 0
        if count:
            assert matched + count < len(one.request.tokens)
            assert count % SIZE == matched % SIZE == 0
        return count

    def _admit(self, one: Asked, rng: random.Random, output: Output) -> None:
        length = len(one.request.tokens)
        matches = sorted(rng.randrange(length // SIZE + 1) * SIZE for _ in range(3))
        count = 0
        one.matched = 0
        # An id that was used before is asked about at each allocation, whatever became of the last.
        for match in matches[: rng.randrange(0 if one.is_fresh else 1, 4)]:
            one.matched = min(match, length - 1)
            count = self._query(one, one.matched)
        if count and self.is_chunked and rng.random() < 0.15:
            begin = one.matched + rng.randrange(count)
            if not begin % SIZE:
                self.scheduler.cancel_load(one.request, begin, one.matched + count)
                count = begin - one.matched
        if rng.random() < 0.2:
            return  # no room: asked again later, or never
        self._allocate(one, count, rng)
        if self.is_async and count:
            one.is_waiting = True
            self.counted[one.request.request_id] = one.loaded
        elif rng.random() < 0.8:
            self._report(one, 0, output)

    def _allocate(self, one: Asked, count: int, rng: random.Random) -> None:
        length = len(one.request.tokens)
        one.loaded, stop = count, -(-length // SIZE)
        if self.has_layout:
            if self.is_chunked:
                one.loaded = rng.randrange(count // SIZE + 1) * SIZE
            one.request.py_num_connector_matched_tokens = one.loaded  # type: ignore[attr-defined]
            stop = -(-length // SIZE)
            if self.is_chunked:
                stop = -(-min(length, one.matched + one.loaded + 8) // SIZE)
        one.cursor = one.matched + one.loaded
        numbers = [rng.randrange(64) for _ in range(stop)]
        one.pages = [list(numbers) for _ in range(self.geometry.num_groups)]
        for group, pages in zip(self.geometry.groups, one.pages, strict=True):
            if group.window_tokens:
                for block in range(max(0, one.cursor - group.window_tokens + 1) // SIZE):
                    pages[block] = -1
        if self.geometry.num_groups > 1 or rng.random() < 0.3:
            self.scheduler.update_state_after_alloc_by_layer_group(one.request, one.pages)
        else:
            self.scheduler.update_state_after_alloc(one.request, one.pages[0])

    def _report(self, one: Asked, counted: int, output: Output) -> None:
        scheduled = min(8, len(one.request.tokens) - one.cursor)
        one.reported = 0
        if not self.is_async:
            self.counted[one.request.request_id] = one.loaded
        flat = one.pages[0] if self.geometry.num_groups == 1 else []
        output.new_requests.append(
            Report(
                one.request.request_id,
                list(one.request.tokens),
                flat,
                one.matched + counted,
                scheduled,
                one.pages,
            )
        )
        one.cursor += scheduled

    def _go_on(self, one: Asked, rng: random.Random, output: Output) -> None:
        draw = rng.random()
        length = len(one.request.tokens)
        if draw < 0.25:
            for _ in range(rng.randrange(1, 3)):
                pages = one.pages if rng.random() < 0.7 else []
                self.scheduler.request_finished_by_layer_group(one.request, pages)
            self.live.remove(one)
            self.live.append(self._new(rng))
        elif draw < 0.35:
            self._reset(one)
        else:
            more = [[rng.randrange(64)] for _ in self.geometry.groups]
            one.pages = [[*old, *new] for old, new in zip(one.pages, more, strict=True)]
            scheduled = min(4, max(1, length - one.cursor))
            flat = more[0] if len(more) == 1 else []
            report = Report(one.request.request_id, [], flat, one.cursor, scheduled, more)
            output.cached_requests.append(report)
            one.cursor = min(length, one.cursor + scheduled)

    def _reset(self, one: Asked) -> None:
        """Its pages are gone: signalled by new hosts, silent in others."""
        if self.next_id % 2:
            self.scheduler.request_reset(one.request)
        one.pages, one.reported, one.is_waiting, one.is_fresh = [], -1, False, False

    def _check(self, metadata: ConnectorMetadata) -> None:
        assert metadata.failure == "", metadata.failure
        ordered = {o.request_id: int((o.pages[0] >= 0).sum()) * SIZE for o in metadata.loads}
        assert ordered == {key: count for key, count in self.counted.items() if count}
        for order in metadata.loads:
            assert order.is_async is self.is_async
            slots = np.frombuffer(order.slots, dtype=SLOT_DTYPE).reshape(-1, order.num_shards)
            assert order.pages.shape[:2] == (self.geometry.num_groups, len(slots))
            assert (order.pages[0] >= 0).any()
            self.hand(order)
            absent = slots["generation"] == 0
            for group in range(self.geometry.num_groups):
                is_wanted = (order.pages[group] >= 0).any(axis=1)
                assert not (is_wanted & absent[:, group]).any()
        assert len(set(metadata.alive.tolist())) == len(metadata.alive)

    def hand(self, order: LoadOrder) -> None:
        """The workers were told to load it, and give its lease back."""
        slots = np.frombuffer(order.slots, dtype=SLOT_DTYPE).reshape(-1, order.num_shards)
        for chunk in slots["slot"][:, 0].tolist():
            self.handed[order.lease, int(chunk)] += 1

    def end(self) -> None:
        """All requests are forgotten; everything must be given back."""
        self.live.clear()
        self.counted.clear()
        for _ in range(40):
            self._check(self.scheduler.build_connector_meta(Output()))
        table = self.scheduler._table
        assert table is not None
        assert table.live_keys() == []
        self.settle()

    def settle(self) -> None:
        """Waits until all that was retrieved was handed out or given back."""
        until(lambda: not self._owed(), 10)
        assert not self.counting.open

    def _owed(self) -> list[tuple[bytes, int]]:
        """Chunks that nobody has given back; each is given back by one side, once."""
        owed = []
        for at, count in list(self.counting.retrieved.items()):
            assert count + self.handed[at] <= 1, at
            if count + self.handed[at] == 0:
                owed.append(at)
        return owed or [(b"open", key) for key in list(self.counting.open)]


def _namespace(geo: Geometry) -> Namespace:
    plain = namespace(chunk_blocks=geo.chunk_blocks, page_bytes=PAGE_BYTES)
    groups = tuple(
        LayerGroup(layers=(at,), page_bytes=PAGE_BYTES, window_tokens=group.window_tokens)
        for at, group in enumerate(geo.groups)
    )
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return Namespace(**{**fields, "tokens_per_block": SIZE, "groups": groups})


@contextmanager
def ask_host(
    folder: Path,
    windows: tuple[int, ...] = (0,),
    chunk: int = 1,
    has_layout: bool = False,
    mode: LoadMode = LoadMode.SYNC,
    is_chunked: bool = True,
) -> Iterator[AskHost]:
    """A host, its scheduler, and a server that counts."""
    geo = geometry(SIZE, chunk, num_pages=64, windows=windows, page_bytes=PAGE_BYTES)
    owner = _namespace(geo)
    with Responder(folder) as server, joined_link(server.url, owner) as link:
        counting = Counting(server, len(windows))
        file = ExtentFile(extent_geometry(1, owner), server.arena)
        server.give(file)
        until(lambda: link.extents.get(1))
        args: Any = Args(kv_connector_config=ConnectorSettings(server.url))
        args.enable_chunked_prefill = is_chunked
        scheduler = KvkeepConnectorScheduler(args)
        features = replace(scheduler._engine.features, cancel_load=is_chunked)
        scheduler._engine.features = features
        engine: Any = scheduler._engine
        memory = PageMemory(groups=(), export=None)
        saver = Saver(link, geo, 50, Journal(LOGGER))
        shared = Shared((), "")
        engine._prepared = Prepared(owner, geo, memory, shared, mode, has_layout, lambda: None)
        engine._running = Running(link, geo, saver, memory, mode, lambda: None)
        try:
            yield AskHost(scheduler, counting, geo)
        finally:
            file.close()
            if scheduler._desk is not None:
                scheduler._desk.close()

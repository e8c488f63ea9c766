"""A host that keeps to no order: any hook, about any request, at any time, with odd arguments.

Few ids serve for many requests, so that each is met again soon after it ended, or before it did;
ends come before the report, after it, twice or never, with pages, without, or with those of
another request; reports are late, repeated, empty or about nobody. Where the host itself breaks a
promise the adapter may say so; nothing may be raised, nothing may stay behind, and no answer may
be one that a host refuses.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import Any

from adapter.engine import LOGGER
from adapter.journal import Journal
from adapter.metadata import ConnectorMetadata
from adapter.saver import Saver
from tests.adapter.askhost import SIZE, AskHost
from tests.adapter.hostlike import FakeMark, FakeRequest, Output, Report, tokens

NUM_IDS = 4
NUM_PAGES = 64


class UnrulyHost:
    """Drives the scheduler of an ``AskHost``, and the book of its saver.

    Attributes:
        has_failed: a broken promise was said to the workers, after which nothing is given back one
            by one.
    """

    def __init__(self, host: AskHost, rng: random.Random) -> None:
        host.begin()
        self.host, self.rng = host, rng
        self.scheduler = host.scheduler
        engine: Any = host.scheduler._engine
        geo, link = host.geometry, host.running.link
        # What ends caching would take the registration back that the next example needs.
        self.running = replace(host.running, saver=Saver(link, geo, 50, Journal(LOGGER)))
        engine.run_uncached = self._run_uncached
        engine._running, self.scheduler._broken_promise = self.running, ""
        self.engine = engine
        self.pending: list[int] = []
        self.num_groups = host.geometry.num_groups
        self.has_failed = False
        self.output = Output()
        self.last = ConnectorMetadata(0)
        self.mark = FakeMark()
        self.requests = [self._request(number) for number in range(1, NUM_IDS + 1)]

    def step(self) -> None:
        at = self.rng.randrange(NUM_IDS)
        if self.rng.random() < 0.1:
            self.requests[at] = self._request(at + 1)
        one = self.requests[at]
        act = self.rng.choice(
            (
                self._query,
                self._query,
                self._allocate,
                self._allocate,
                self._report_new,
                self._report_cached,
                self._finish,
                self._cancel,
                self._reset,
                self._build,
                self._build,
            )
        )
        act(one)

    def end(self) -> None:
        """Silence, but for empty iterations: everything is forgotten."""
        self.output = Output()
        for _ in range(40):
            self._build(self.requests[0])
        table = self.scheduler._table
        if table is not None and not self.has_failed:
            assert len(table) == 0
            assert table.live() == table.unreported() == []
        if not self.has_failed:
            saver = self.running.saver
            saver._flow.give_up_held()  # no thread of it runs
            assert saver._ledger.num_entries == saver._ledger.num_held_pages == 0
            self.host.counted.clear()
            self.host.settle()

    def _run_uncached(self, reason: str) -> None:
        assert reason
        self.engine._running = None
        self.running.saver.abandon()

    def _request(self, number: int) -> FakeRequest:
        request = FakeRequest(number, tokens(self.rng.randrange(1, 60), self.rng.randrange(2)))
        request.cache_salt = self.rng.choice((None, None, "x"))
        if self.rng.random() < 0.1:
            request.multimodal_hashes, request.multimodal_positions = [[0] * 8], [0]
            request.multimodal_lengths = [1]
        return request

    def _query(self, one: FakeRequest) -> None:
        matched = self.rng.randrange(len(one.tokens) + 1)
        if self.rng.random() < 0.8:
            matched -= matched % SIZE
        count, is_async = self.scheduler.get_num_new_matched_tokens(one, matched)
        assert is_async is (self.host.is_async and count > 0)
        assert count >= 0
        assert not count or (matched + count < len(one.tokens) and count % SIZE == 0)
        if self.host.has_layout:
            part = self.rng.randrange(count // SIZE + 1) * SIZE if self.host.is_chunked else count
            one.py_num_connector_matched_tokens = part  # type: ignore[attr-defined]

    def _pages(self, one: FakeRequest, count: int | None = None) -> list[list[int]]:
        """For each group, mostly as many as the prompt needs; holes in some groups."""
        if count is None:
            spread = (0, 0, 0, 0, 1, -1) if self.host.has_layout else (0,)
            count = -(-len(one.tokens) // SIZE) + self.rng.choice(spread)
        groups = [
            [self.rng.randrange(NUM_PAGES) for _ in range(max(0, count))]
            for _ in range(self.num_groups)
        ]
        if self.rng.random() < 0.3:
            for pages in groups:
                for at in range(len(pages)):
                    pages[at] = -1 if self.rng.random() < 0.2 else pages[at]
        return groups

    def _allocate(self, one: FakeRequest) -> None:
        pages = self._pages(one) if self.rng.random() < 0.9 else []
        if self.num_groups == 1 and self.rng.random() < 0.5:
            flat = pages[0] if pages else []
            self.scheduler.update_state_after_alloc(one, flat)
        else:
            self.scheduler.update_state_after_alloc_by_layer_group(one, pages)

    def _report(self, one: FakeRequest, new: list[int], pages: list[list[int]]) -> Report:
        computed = self.rng.randrange(-1, len(one.tokens) + 1)
        if self.rng.random() < 0.7 and computed > 0:
            computed -= computed % SIZE
        flat = pages[0] if self.num_groups == 1 else []
        return Report(one.request_id, new, flat, computed, self.rng.randrange(9), pages)

    def _report_new(self, one: FakeRequest) -> None:
        new = list(one.tokens) if self.rng.random() < 0.9 else list(one.tokens[:-1])
        if any(report.request_id == one.request_id for report in self.output.new_requests):
            return
        self.output.new_requests.append(self._report(one, new, self._pages(one)))

    def _report_cached(self, one: FakeRequest) -> None:
        new = [self.rng.randrange(9) for _ in range(self.rng.randrange(3))]
        one.tokens = one.tokens + new
        pages = self._pages(one, self.rng.randrange(3))
        self.output.cached_requests.append(self._report(one, new, pages))

    def _finish(self, one: FakeRequest) -> None:
        pages = self._pages(one) if self.rng.random() < 0.7 else []
        if self.rng.random() < 0.7:
            one.tokens = [*one.tokens, 1]
        hook = self.scheduler.request_finished_by_layer_group
        if hook(one, pages):
            assert hook(one, pages) is False
            self.pending.append(one.request_id)
        if self.rng.random() < 0.3:
            assert hook(one, []) is False

    def _cancel(self, one: FakeRequest) -> None:
        start = self.rng.randrange(len(one.tokens) + 1)
        self.scheduler.cancel_load(one, start, start + self.rng.randrange(30))

    def _reset(self, one: FakeRequest) -> None:
        self.scheduler.request_reset(one)

    def _build(self, _: FakeRequest) -> None:
        output = None if self.rng.random() < 0.05 else self.output
        built = self.scheduler.build_connector_meta(output)
        metadata = pickle.loads(pickle.dumps(built))  # noqa: S301 - as the host does
        self.output = Output()
        saver = self.running.saver
        saver.finished(self.pending, self.mark)  # at the end of the iteration before
        self.pending.clear()
        if self.rng.random() < 0.1:
            saver.bound(self.last, self.mark)  # an iteration late, for the second time
        saver.bound(metadata, self.mark)
        if self.rng.random() < 0.8:
            saver.launched()
        saver.take_saved()
        self.has_failed |= bool(metadata.failure)
        for order in metadata.loads:
            assert order.is_async in (False, self.host.is_async)
            self.host.hand(order)
        self.last = metadata

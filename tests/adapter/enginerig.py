"""An engine without torch: connector classes, a shared pool, and a host of a few lines.

Drives the real scheduler and worker through whole iterations in the order of host contract §5,
against whatever server the URL leads to. Pages hold bytes derived from their tokens, so each
loaded page can be checked.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import shake_128
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adapter.pages import SharedPool
from adapter.scheduler import KvkeepConnectorScheduler
from adapter.worker import KvkeepConnectorWorker
from protocol.endpoint import parse
from protocol.errors import UnreachableError
from protocol.messages import Stats, StatsReply
from server.asking import stats
from tests.adapter.hostlike import Args, ConnectorSettings, FakeRequest, Output, Report
from tests.adapter.test_identity import CONFIG, FakeTensor
from tests.wire.process import ServerProcess

SIZE = 4
PAGE_SHAPE = (2, 2, 64)
PAGE_BYTES = 2 * 2 * 64 * 4


@contextmanager
def launched(*arguments: str) -> Iterator[ServerProcess]:
    """A server of its own; nothing of it stays."""
    with (
        TemporaryDirectory(prefix="kvk-") as folder,
        TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as shared,
        ServerProcess(Path(folder), Path(shared) / "a", *arguments) as server,
    ):
        yield server


def write_model(folder: Path, weights: bytes = b"", **config: int) -> Path:
    """A model directory; its weights are the folder's path unless told, so tests share nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = weights or str(folder).encode()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def page_content(tokens: list[int], page_bytes: int = PAGE_BYTES) -> Any:
    """What the page of the last block of ``tokens`` must hold."""
    digest = shake_128(np.array(tokens, dtype=np.int64).tobytes()).digest(page_bytes)
    return np.frombuffer(digest, dtype=np.uint8)


class Stream:
    """A stream on which everything is done at once."""

    def record_event(self) -> Stream:
        return self

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


@dataclass
class Outcome:
    """How one request went.

    Attributes:
        offered: tokens promised by the connector.
        kept: whether its pages were held for saves.
        pages: its page ids.
    """

    offered: int
    kept: bool
    pages: list[int]


class EngineRig:
    """One engine: constructed in two threads, its pool registered."""

    def __init__(
        self,
        url: str | None,
        model: Path,
        num_pages: int = 64,
        args: Args | None = None,
        page_shape: tuple[int, int, int] = PAGE_SHAPE,
    ) -> None:
        self.args = replace(
            args or Args(), model=str(model), kv_connector_config=ConnectorSettings(url)
        )
        self.made: dict[str, Any] = {}
        threads = [
            threading.Thread(target=self._make, args=("worker", KvkeepConnectorWorker)),
            threading.Thread(target=self._make, args=("scheduler", KvkeepConnectorScheduler)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.scheduler: KvkeepConnectorScheduler = self.made["scheduler"]
        self.worker: KvkeepConnectorWorker = self.made["worker"]
        self.page_bytes = int(np.prod(page_shape)) * 4
        self.pool = SharedPool.create(num_pages * self.page_bytes)
        self.pages = self.pool.view.reshape(num_pages, self.page_bytes)
        self.tensor = FakeTensor(self.pool.view.view(np.float32).reshape(num_pages, *page_shape))
        self.next_id, self.next_page = 1, 0
        self.stream = Stream()
        self.saved: list[int] = []
        self.hook_s: dict[str, float] = {}
        self.num_layers, self.fires_hooks = page_shape[0], True
        self.parked: list[int] = []
        self.loading: set[int] = set()

    def _make(self, name: str, kind: Any) -> None:
        self.made[name] = kind(self.args)

    def register(self) -> EngineRig:
        """Hands the pool over and waits for the first registration and its extents."""
        self.worker.register_kv_caches(self.tensor)
        self.scheduler.wait_for_initialization()
        return self

    def timed(self, name: str, function: Any, *arguments: Any) -> Any:
        begin_s = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            taken_s = time.perf_counter() - begin_s
            self.hook_s[name] = max(taken_s, self.hook_s.get(name, 0.0))

    def query(self, request: FakeRequest, num_computed: int = 0) -> int:
        count, is_async = self.timed(
            "query", self.scheduler.get_num_new_matched_tokens, request, num_computed
        )
        assert count >= 0
        if count:
            assert num_computed + count < len(request.tokens)
        assert type(is_async) is bool
        if is_async:
            assert count, "the host refuses (0, True)"
            self.parked.append(request.request_id)
        return int(count)

    def iterate(
        self, output: Output, finished: tuple[int, ...] = (), *, forward: Any = None
    ) -> None:
        """One iteration from the report to ``get_finished``."""
        metadata = self.timed("build", self.scheduler.build_connector_meta, output)
        copied = pickle.loads(pickle.dumps(metadata))  # noqa: S301 - as the host does
        self.timed("bind", self.worker.bind_connector_meta, copied)
        self.timed("load", self.worker.start_load_kv, self.stream)
        self.launch(self.worker, forward)
        self.timed("wait_for_save", self.worker.wait_for_save, self.stream)
        self.collect(finished)

    def launch(self, worker: KvkeepConnectorWorker, forward: Any) -> None:
        """A forward: all layers are asked for, then computed, then reported."""
        layers = range(self.num_layers) if self.fires_hooks else ()
        for layer in layers:
            self.timed("wait_for_layer", worker.wait_for_layer_load, layer, self.stream)
        if forward is not None:
            forward()
        for layer in layers:
            self.timed("save_layer", worker.save_kv_layer, layer, self.stream)

    def collect(self, finished: tuple[int, ...] = ()) -> None:
        started, self.parked = self.parked, []
        saved, loaded = self.timed(
            "get_finished", self.worker.get_finished, list(finished), list(started)
        )
        self.loading.update(started)
        for number in loaded:
            self.loading.remove(number)  # KeyError in the host as well
        self.saved += saved

    def await_load(self, request: FakeRequest, limit_s: float = 10.0) -> bool:
        """Empty iterations while the request waits outside the batch.

        Returns:
            Whether it waited at all.
        """
        if request.request_id not in self.parked:
            return False
        deadline_s = time.monotonic() + limit_s
        self.iterate(Output())
        while request.request_id in self.loading:
            assert time.monotonic() < deadline_s, self.worker.counters()
            time.sleep(0.001)  # a pace, not a wait: the loop ends by its condition
            self.iterate(Output())
        return True

    def hand_out(self, count: int) -> list[int]:
        pages = [(self.next_page + at) % len(self.pages) for at in range(count)]
        self.next_page += count
        return pages

    def begin(self, tokens: list[int], **scope: Any) -> tuple[FakeRequest, int, list[int]]:
        """Query and allocation of one request."""
        request = FakeRequest(self.next_id, list(tokens), **scope)
        self.next_id += 1
        offered = self.query(request)
        pages = self.hand_out(-(-len(tokens) // SIZE))
        self.wipe(pages)
        self.timed("alloc", self.scheduler.update_state_after_alloc, request, pages)
        return request, offered, pages

    def wipe(self, pages: list[int]) -> None:
        """What stood in recycled pages must never be taken for content."""
        self.pages[pages] = 0xFF

    def fill(self, tokens: list[int], pages: list[int], first: int) -> None:
        """The forward: pages of the full blocks from ``first`` on."""
        for block in range(first, len(tokens) // SIZE):
            self.pages[pages[block]] = page_content(tokens[: (block + 1) * SIZE], self.page_bytes)

    def check(self, tokens: list[int], pages: list[int], stop: int) -> None:
        """Loaded pages hold what their tokens say, and nothing else was touched."""
        for block in range(stop):
            expected = page_content(tokens[: (block + 1) * SIZE], self.page_bytes)
            assert np.array_equal(self.pages[pages[block]], expected), block
        for page in pages[stop:]:
            assert (self.pages[page] == 0xFF).all()

    def run(self, tokens: list[int], **scope: Any) -> Outcome:
        """One request from query to finish, one token generated."""
        request, offered, pages = self.begin(tokens, **scope)
        cursor = offered if self.await_load(request) else 0
        report = Report(request.request_id, list(tokens), pages, cursor, len(tokens) - offered)

        def forward() -> None:
            self.check(tokens, pages, offered // SIZE)
            self.fill(tokens, pages, offered // SIZE)

        self.iterate(Output([report]), forward=forward)
        request.tokens.append(1)
        kept = self.timed("finished", self.scheduler.request_finished, request, pages)
        assert self.scheduler.request_finished(request, pages) is False
        self.collect((request.request_id,) if kept else ())
        return Outcome(offered, kept, pages)

    def settle(self, request_id: int, limit_s: float = 10.0) -> None:
        """Empty iterations until the request's pages are given back."""
        deadline_s = time.monotonic() + limit_s
        while request_id not in self.saved:
            assert time.monotonic() < deadline_s, self.worker.counters()
            self.iterate(Output())
            time.sleep(0.002)  # a pace, not a wait: the loop ends by its condition
        assert self.saved.count(request_id) == 1

    def run_saved(self, tokens: list[int], **scope: Any) -> Outcome:
        """``run``, and wait for its saves if there are any."""
        outcome = self.run(tokens, **scope)
        if outcome.kept:
            self.settle(self.next_id - 1)
        return outcome

    def run_hit(self, tokens: list[int], num_tokens: int) -> Outcome:
        """``run``, again while less is offered: a LOOKUP that its budget ends is a miss by rule."""
        outcome, tries = self.run_saved(tokens), 1
        while outcome.offered < num_tokens and tries < 10:
            outcome, tries = self.run_saved(tokens), tries + 1
        return outcome

    def stats(self) -> dict[str, int]:
        """The server's counters and gauges, whether or not the engine is registered there."""
        assert self.worker.link is not None
        channel = self.worker.link.open_channel()
        try:
            reply = channel.call(Stats(), 5)
        except UnreachableError:
            assert self.args.kv_connector_config is not None
            endpoint = parse(self.args.kv_connector_config.server_url or "")
            return stats(endpoint.side_path(""), 5)
        finally:
            channel.close()
        assert isinstance(reply, StatsReply)
        return reply.values

    def check_nothing_leased(self, limit_s: float = 5.0) -> None:
        """Leases go back in the background; soon there are none."""
        deadline_s = time.monotonic() + limit_s
        while (now := self.stats())["leases"] or now["pinned_slots"]:
            assert time.monotonic() < deadline_s, now
            time.sleep(0.01)  # a pace, not a wait: the loop ends by its condition

    def close(self) -> None:
        self.worker.shutdown()

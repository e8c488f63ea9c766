"""The adapter's line against the real server: bytes, kills, stops, extents taken back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adapter.channel import Channel
from adapter.copy import ShardLoad, load_pages
from adapter.enrolment import Enrolment
from adapter.link import Joined, Link, LinkConfig
from adapter.pagememory import GroupPages
from adapter.pages import SharedPool
from protocol.errors import ErrorCode, KvkeepError, UnreachableError
from protocol.ids import InstanceId, LeaseId
from protocol.layout import Region, ShardPool, pack_pages, unpack_slots
from protocol.messages import (
    Body,
    Commit,
    CommitReply,
    Lookup,
    LookupReply,
    Ping,
    Retrieve,
    RetrieveReply,
    Stats,
    StatsReply,
    Store,
    StoreReply,
)
from protocol.namespace import Namespace
from tests.adapter.linking import make_pool, open_link, register
from tests.adapter.responder import PAGE_BYTES, namespace, until
from tests.wire.process import ServerProcess

SIZES = ("--l1-size", "8M", "--extent-size", "4M")
CALL_S = 5.0


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir, *SIZES) as server:
        yield server


class Engine:
    """A link with a pool of 16 pages and a channel: what an engine does, by hand."""

    def __init__(self, link: Link, pool: SharedPool, page_bytes: int = PAGE_BYTES) -> None:
        self.link = link
        self.pool = pool
        self.page_bytes = page_bytes
        self.channel: Channel = link.open_channel()
        self.stores = 0
        self.requests = 0

    @property
    def pages(self) -> NDArray[np.uint8]:
        return self.pool.view.reshape(-1, self.page_bytes)

    def joined(self) -> Joined:
        joined = self.link.wait_joined(CALL_S)
        assert joined is not None, self.link.refusal
        return joined

    def save(self, keys: bytes, pages: list[int]) -> int:
        self.stores += 1
        session = self.joined().session
        store = Store(
            session=session,
            store=self.stores,
            request=0,
            shard=0,
            start=0,
            parent=b"",
            keys=keys,
            pages=pack_pages(pages),
        )
        self.channel.submit(store, CALL_S)
        (ended,) = self.channel.poll(CALL_S)
        assert isinstance(ended.body, StoreReply), ended.error
        body = Commit(session=session, store=self.stores, count=ended.body.copied)
        reply = self.channel.call(body, CALL_S)
        assert isinstance(reply, CommitReply)
        return reply.published

    def offer(self, keys: bytes) -> tuple[Joined, LeaseId, NDArray[Any]]:
        """LOOKUP and RETRIEVE of all keys, once the engine has mapped where they lie."""
        joined = self.joined()

        def hit() -> LookupReply | None:
            self.requests += 1
            body = Lookup(session=joined.session, request=self.requests, start=0, keys=keys)
            reply = self.channel.call(body, CALL_S)
            assert isinstance(reply, LookupReply)
            return reply if reply.ready == len(keys) // 16 else None

        found: LookupReply = until(hit)
        body = Retrieve(session=joined.session, lease=found.lease, start=0, count=found.ready)
        reply = self.channel.call(body, CALL_S)
        assert isinstance(reply, RetrieveReply)
        slots = unpack_slots(reply.slots, found.ready, reply.num_shards)[:, 0]
        return joined, LeaseId(found.lease), slots

    def load(self, joined: Joined, slots: NDArray[Any], pages: list[int]) -> None:
        memory = GroupPages.packed(self.pool.view, self.page_bytes)
        shard = ShardLoad(0, memory, slots, np.array(pages, dtype=np.int32)[:, None])
        load_pages(self.link.extents, joined.epoch, [shard])

    def stats(self) -> dict[str, int]:
        reply = self.channel.call(Stats(), CALL_S)
        assert isinstance(reply, StatsReply)
        return reply.values


@contextmanager
def engine(
    url: str, model: str = "test", page_bytes: int = PAGE_BYTES, num_pages: int = 16, **config: Any
) -> Iterator[Engine]:
    pool = make_pool(num_pages, page_bytes, seed=num_pages)
    with open_link(url, **config) as link:
        engine = Engine(link, pool, page_bytes)
        register(link, pool, namespace(model, page_bytes=page_bytes))
        engine.joined()
        yield engine
        engine.channel.close()


def test_every_byte_comes_back_and_the_pins_go(server: ServerProcess) -> None:
    keys = os.urandom(16 * 5)
    saved, loaded = [3, 1, 4, 15, 9], [10, 11, 5, 7, 6]
    with engine(server.url) as one:
        expected = one.pages[saved].copy()
        assert one.save(keys, saved) == 5
        joined, lease, slots = one.offer(keys)
        assert one.stats()["pinned_slots"] == 5
        one.load(joined, slots, loaded)
        assert np.array_equal(one.pages[loaded], expected)
        one.link.release(lease)
        until(lambda: one.stats()["pinned_slots"] == 0)
        assert one.link.close(CALL_S)
    with engine(server.url) as two:
        joined, _, slots = two.offer(keys)
        two.load(joined, slots, loaded)
        assert np.array_equal(two.pages[loaded], expected)


def test_kill_while_an_offer_is_open(server: ServerProcess, short_dir: Path, shm_dir: Path) -> None:
    keys = os.urandom(16 * 3)
    with engine(server.url) as one:
        one.save(keys, [0, 1, 2])
        expected = one.pages[[0, 1, 2]].copy()
        before, _, slots = one.offer(keys)
        server.kill()
        for timeout_s in (0.02, CALL_S, CALL_S):
            started_s = time.monotonic()
            with pytest.raises(UnreachableError):
                one.channel.call(Ping(), timeout_s)
            assert time.monotonic() - started_s < 0.05 + 0.02
        until(lambda: one.link.is_breaker_open)
        one.load(before, slots, [8, 9, 10])
        assert np.array_equal(one.pages[[8, 9, 10]], expected)
        with ServerProcess(short_dir, shm_dir, *SIZES):
            after = one.joined()
            assert after.epoch != before.epoch
            until(lambda: not one.link.is_breaker_open)
            one.load(before, slots, [11, 12, 13])
            assert np.array_equal(one.pages[[11, 12, 13]], expected)
            assert one.save(os.urandom(16), [4]) == 1
            assert one.link.close(CALL_S)


def test_a_stopped_server_costs_one_time_out_and_is_used_again_when_it_runs(
    server: ServerProcess,
) -> None:
    with engine(server.url) as one:
        one.channel.call(Ping(), CALL_S)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            longest_s = 0.0
            for _ in range(50):
                started_s = time.monotonic()
                with pytest.raises(UnreachableError):
                    one.channel.call(Ping())
                longest_s = max(longest_s, time.monotonic() - started_s)
            assert longest_s < 0.05 + 0.02
            assert one.link.counters["call_timeouts"] == 1
        finally:
            os.kill(server.pid, signal.SIGCONT)
        until(lambda: not one.link.is_breaker_open, 10)
        one.channel.call(Ping(), CALL_S)
        assert one.save(os.urandom(16), [1]) == 1


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_close_is_bounded_when_the_server_does_not_answer(
    server: ServerProcess, how: signal.Signals
) -> None:
    with engine(server.url) as one:
        os.kill(server.pid, how)
        started_s = time.monotonic()
        assert not one.link.close(0.5)
        assert time.monotonic() - started_s < 0.7
        if how == signal.SIGSTOP:
            os.kill(server.pid, signal.SIGCONT)


def test_an_extent_is_given_back_to_another_model(server: ServerProcess) -> None:
    with engine(server.url, "a", num_pages=600) as one:
        # More than one extent of 4 MiB can hold, so that this model owns both.
        for start in (0, 300):
            assert one.save(os.urandom(16 * 300), list(range(start, start + 300))) == 300
        until(lambda: len(one.link.extents) == 2)
        with engine(server.url, "b", page_bytes=3 * 4096) as two:
            until(lambda: len(one.link.extents) == 1)
            until(lambda: len(two.link.extents) == 1)
            keys = os.urandom(16 * 4)
            assert two.save(keys, [0, 1, 2, 3]) == 4
            joined, _, slots = two.offer(keys)
            two.load(joined, slots, [8, 9, 10, 11])
            assert np.array_equal(two.pages[[8, 9, 10, 11]], two.pages[[0, 1, 2, 3]])


def test_a_lost_side_connection_is_mended(server: ServerProcess) -> None:
    with engine(server.url, quiet_s=0.2) as one:
        before = one.joined()
        visit = one.link._keeper._visit
        assert visit is not None
        visit._side._socket.shutdown(2)
        after: Joined = until(lambda: one.link.joined is not before and one.link.joined)
        assert after.epoch == before.epoch
        assert after.session != before.session
        keys = os.urandom(16 * 2)
        assert one.save(keys, [5, 6]) == 2
        joined, _, slots = one.offer(keys)
        one.load(joined, slots, [7, 8])
        assert np.array_equal(one.pages[[7, 8]], one.pages[[5, 6]])


def test_a_registration_whose_answer_got_lost_is_ended_and_made_again(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Enrolment._on_reply
    lost: list[Any] = []

    def lossy(self: Enrolment, body: Body | None, error: KvkeepError | None) -> None:
        if body is not None and not lost:
            lost.append(body)
            body, error = None, UnreachableError(ErrorCode.DEADLINE_EXCEEDED, "lost on the way")
        real(self, body, error)

    monkeypatch.setattr(Enrolment, "_on_reply", lossy)
    with engine(server.url, quiet_s=0.2) as one:
        assert one.joined().session != lost[0].session
        assert one.save(os.urandom(16), [3]) == 1


def test_a_refused_registration_names_the_reason(server: ServerProcess) -> None:
    pool = SharedPool.create(PAGE_BYTES)
    with open_link(server.url) as link:
        wrong = namespace(page_bytes=2 * PAGE_BYTES)
        from tests.adapter.linking import shard_pool

        link.register(wrong, 0, pool.fd, pool.num_bytes, (shard_pool(1),))
        assert link.wait_joined(CALL_S) is None
        assert isinstance(link.refusal, KvkeepError)
        assert "8192" in link.refusal.message


def test_a_rank_that_stays_away_is_said_and_one_that_comes_heals(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapter.duties.WHOLE_NS", 0)
    plain, instance = namespace(), InstanceId(os.urandom(16))
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    owner = Namespace(**fields | {"num_ranks": 2})
    links = [Link(LinkConfig(server.url, instance, f"rank {rank}")) for rank in (0, 1)]
    try:
        for rank, link in enumerate(links):
            pool = make_pool()
            region = Region(offset_bytes=0, size_bytes=PAGE_BYTES, stride_bytes=PAGE_BYTES)
            pages = ShardPool(shard=rank, num_pages=16, regions=(region,))
            link.register(owner, rank, pool.fd, pool.num_bytes, (pages,), is_ring=rank == 1)
        leader, other = links
        leader.set_live_requests(list)
        leader.start()
        assert leader.wait_joined(CALL_S) is not None
        until(lambda: leader.counters.get("ranks_missing") == 1, 30)
        other.start()
        assert other.wait_joined(CALL_S) is not None
        seen = leader.counters["heartbeats"]
        until(lambda: leader.counters["heartbeats"] > seen, 30)
        assert leader.counters["ranks_missing"] == 1
        assert "ranks_missing" not in other.counters
    finally:
        for link in links:
            link.close(5)

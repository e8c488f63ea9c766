"""The saver's thread: STORE, proof, COMMIT; and everything a server can do instead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.geometry import Geometry, GroupGeometry
from adapter.journal import Journal
from adapter.link import Link, LinkConfig
from adapter.metadata import ConnectorMetadata, LastWord, SaveNames
from adapter.pagememory import GroupPages, LayerSlice, PageMemory, PagePart
from adapter.ring import StagingRing
from adapter.saver import Saver
from protocol.errors import ErrorCode, RequestError
from protocol.ids import InstanceId, ShardIndex
from protocol.layout import PAGE_DTYPE
from protocol.messages import Body, CommitReply, Op, StopReason, StoreReply
from tests.adapter.hostlike import FakeMark
from tests.adapter.linking import joined_link
from tests.adapter.responder import PAGE_BYTES, Responder, until

ALL = LastWord(1 << 30)
GEO = Geometry(4, 1, (GroupGeometry(16, PAGE_BYTES),), (ShardIndex(0),))


def publish(body: Any) -> Body:
    return CommitReply(published=body.count)


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        server.handlers[Op.COMMIT] = publish
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


@pytest.fixture
def saver(link: Link) -> Iterator[Saver]:
    made = Saver(link, GEO, 100, Journal(logging.getLogger("test")))
    made.start()
    yield made
    made.stop(5)


def names(key: int = 7, pages: tuple[int, ...] = (3, 4), first: int = 0) -> SaveNames:
    keys = b"".join(bytes([key, first + at]) * 8 for at in range(len(pages)))
    return SaveNames(100 + key, key, first, b"", keys, np.array([pages], dtype=np.int32))


def bind(
    saver: Saver, *named: SaveNames, alive: dict[int, int] | None = None, mark: Any = None
) -> None:
    alive = alive or {}
    metadata = ConnectorMetadata(
        1,
        alive=np.array(list(alive), dtype=np.int64),
        valid_chunks=np.array(list(alive.values()), dtype=np.int32),
        names=named,
    )
    saver.bound(metadata, mark)


def counted(saver: Saver, name: str) -> int:
    return saver.counters().get(name, 0)


def test_store_then_proof_then_commit(server: Responder, saver: Saver) -> None:
    bind(saver, names(), alive={7: 2})
    (store,) = until(lambda: server.bodies(Op.STORE))
    assert np.frombuffer(store.pages, PAGE_DTYPE).tolist() == [3, 4]
    assert (store.start, store.parent, store.keys, store.shard) == (0, b"", names().keys, 0)
    until(lambda: "chunks_held_already" in saver.counters())  # the copy was seen complete
    assert server.bodies(Op.COMMIT) == []
    bind(saver, alive={7: 2})
    until(lambda: counted(saver, "chunks_saved") == 2)
    (commit,) = server.bodies(Op.COMMIT)
    assert (commit.store, commit.count) == (store.store, 2)


def test_no_store_names_more_than_a_message_may(
    server: Responder, saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.limits.MAX_BLOCKS_PER_MESSAGE", 1)
    bind(saver, names(), alive={7: 2})
    first = until(lambda: server.bodies(Op.STORE))[0]
    assert (first.start, len(first.keys) // 16) == (0, 1)


def test_held_pages_are_committed_and_given_back_once(server: Responder, saver: Saver) -> None:
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.finished([107], None)
    assert until(saver.take_saved) == [107]
    assert len(server.bodies(Op.COMMIT)) == 1
    assert saver.take_saved() == []
    assert not saver.hold(7, 107, 2, ALL)


def test_nothing_is_sent_before_the_stream_has_passed(server: Responder, saver: Saver) -> None:
    mark = FakeMark(is_done=False)
    bind(saver, names(), alive={7: 2}, mark=mark)
    bind(saver, alive={7: 2}, mark=mark)
    assert server.bodies(Op.STORE) == []
    mark.is_done = True
    until(lambda: server.bodies(Op.STORE))


def refuse(code: ErrorCode) -> Any:
    def handler(body: Any) -> Body:
        raise RequestError(code, "as the test wants it")

    return handler


@pytest.mark.parametrize("code", [ErrorCode.BUSY, ErrorCode.INTERNAL, ErrorCode.LIMIT_EXCEEDED])
def test_a_refused_store_gives_the_pages_back(
    server: Responder, saver: Saver, code: ErrorCode
) -> None:
    server.handlers[Op.STORE] = refuse(code)
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.finished([107], None)
    assert until(saver.take_saved) == [107]
    assert server.bodies(Op.COMMIT) == []


@pytest.mark.parametrize("stop", [StopReason.BUSY, StopReason.NO_ROOM])
def test_a_stopped_store_gives_the_pages_back(
    server: Responder, saver: Saver, stop: StopReason
) -> None:
    server.handlers[Op.STORE] = lambda _: StoreReply(held=0, copied=0, stop=stop)
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.finished([107], None)
    assert until(saver.take_saved) == [107]


def test_a_cleared_commit_counts_as_stopped(server: Responder, saver: Saver) -> None:
    server.handlers[Op.COMMIT] = lambda _: CommitReply(published=0, stop=StopReason.CLEARED)
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.finished([107], None)
    assert until(saver.take_saved) == [107]
    assert counted(saver, "saves_stopped_cleared") == 1


def test_a_forgetful_server_loses_what_is_in_flight(server: Responder, saver: Saver) -> None:
    server.handlers[Op.COMMIT] = refuse(ErrorCode.UNKNOWN_SESSION)
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.finished([107], None)
    assert until(saver.take_saved) == [107]
    assert counted(saver, "saves_dropped_server_lost") == 1
    assert counted(saver, "chunks_saved") == 0
    # The link joins again in its own time.
    until(lambda: saver._joined is None or saver._joined.session == 2)
    assert not saver.hold(7, 107, 2, ALL)


def test_a_living_request_is_saved_anew_on_the_next_server(
    server: Responder, saver: Saver, short_dir: Path
) -> None:
    bind(saver, names(), alive={7: 2})
    until(lambda: counted(saver, "open_saves") and server.bodies(Op.STORE))
    bind(saver, alive={7: 2})
    until(lambda: counted(saver, "chunks_saved") == 2)
    server.stop()
    with Responder(short_dir) as second:
        until(lambda: second.bodies(Op.STORE), 10)  # without another word of the engine's
        (store,) = second.bodies(Op.STORE)
        assert (store.start, len(store.keys) // 16) == (0, 2)


def test_held_pages_come_back_when_the_server_is_gone(server: Responder, saver: Saver) -> None:
    server.mute.add(Op.STORE)
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.finished([107], None)
    until(lambda: server.bodies(Op.STORE))
    server.stop()
    begin_s = time.monotonic()
    assert until(saver.take_saved, 10) == [107]
    assert time.monotonic() - begin_s < 5
    bind(saver, names(8), alive={8: 2})
    until(lambda: not saver.hold(8, 108, 2, ALL), 10)


def test_nothing_is_held_for_a_server_that_does_not_answer_or_is_not_there(
    server: Responder, link: Link, short_dir: Path
) -> None:
    journal = Journal(logging.getLogger("test"))
    nowhere = Link(LinkConfig(url=f"ipc://{short_dir}/nobody", instance=InstanceId(b"i" * 16)))
    for to, is_held in ((link, True), (nowhere, False)):
        made = Saver(to, GEO, 100, journal)  # its thread does not run
        bind(made, names(), alive={7: 0})
        assert made.hold(7, 107, 2, ALL) is is_held
    made = Saver(link, GEO, 100, journal)
    bind(made, names(), alive={7: 0})
    server.mute |= set(Op)  # no probe is answered
    link._breaker.trip("of this test", time.monotonic_ns())
    assert not made.hold(7, 107, 2, ALL)
    nowhere.close(1)


def test_what_is_announced_when_the_server_is_gone_already_is_given_back(
    server: Responder, saver: Saver
) -> None:
    bind(saver, names(), alive={7: 2}, mark=FakeMark(is_done=False))
    assert saver.hold(7, 107, 2, ALL)
    assert counted(saver, "held_pages") == 2
    server.stop()
    until(lambda: saver._joined is None, 10)
    saver.finished([107], FakeMark(is_done=False))
    assert until(saver.take_saved, 10) == [107]
    assert counted(saver, "held_pages") == 0


def test_its_thread_outlives_what_it_did_not_expect(
    server: Responder, saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now_s: float) -> None:
        monkeypatch.undo()
        raise ValueError(now_s)

    monkeypatch.setattr(saver._flow, "expire", fail)
    bind(saver, names(), alive={7: 2})
    until(lambda: server.bodies(Op.STORE))
    assert saver._journal.counters()["saver_errors"] == 1


def test_a_report_that_makes_no_sense_ends_all_saves(server: Responder, saver: Saver) -> None:
    server.mute.add(Op.STORE)
    bind(saver, names(), alive={7: 2})
    with pytest.raises(IndexError):
        saver.bound(ConnectorMetadata(2, new_pages=(np.array([16], dtype=np.int32),)), None)
    assert counted(saver, "open_saves") == 0


def test_after_being_abandoned_nothing_is_saved_any_more(server: Responder, saver: Saver) -> None:
    bind(saver, names(), alive={7: 0})
    assert saver.hold(7, 107, 2, ALL)
    saver.abandon()
    saver.finished([107], None)
    assert until(saver.take_saved) == [107]
    bind(saver, names(8), alive={8: 2})
    assert not saver.hold(8, 108, 2, ALL)
    assert counted(saver, "open_saves") == 0
    assert server.bodies(Op.COMMIT) == []


def test_stop_is_quick_and_repeatable(saver: Saver) -> None:
    begin_s = time.monotonic()
    saver.stop(5)
    saver.stop(5)
    assert time.monotonic() - begin_s < 2
    saver.abandon()


def test_its_thread_enters_the_engines_device_first(server: Responder, link: Link) -> None:
    entered: list[str] = []

    def enter() -> None:
        entered.append(threading.current_thread().name)
        raise RuntimeError("no such device")

    saver = Saver(link, GEO, 100, Journal(logging.getLogger("test")), enter)
    saver.start()
    bind(saver, names(), alive={7: 2})
    until(lambda: server.bodies(Op.STORE))  # a device that cannot be entered ends no thread
    assert entered == ["kvkeep-saver"]
    saver.stop(5)


class Staged:
    """A saver whose pages are private: page n is filled with n."""

    def __init__(self, link: Link, by_layer: bool = False, slots: int = 4) -> None:
        flat = np.repeat(np.arange(16, dtype=np.uint8), PAGE_BYTES)
        part = PagePart(flat, PAGE_BYTES, PAGE_BYTES)
        half = PAGE_BYTES // 2
        layers = {at: (LayerSlice(0, at * half, half),) for at in range(2)}
        memory = PageMemory((GroupPages((part,), 16),), None, "private", layers)
        self.flat = flat
        self.ring = StagingRing(GEO, num_bytes=slots * PAGE_BYTES)
        self.saver = Saver(
            link,
            GEO,
            100,
            Journal(logging.getLogger("test")),
            memory=memory,
            ring=self.ring,
            by_layer=by_layer,
        )
        self.saver.start()

    def seen(self, store: Any) -> list[int]:
        """What stands in the slots that a STORE names."""
        slots = np.frombuffer(store.pages, PAGE_DTYPE).tolist()
        return [int(np.unique(self.ring.page(0, slot)).item()) for slot in slots]


def test_private_pages_go_through_the_ring_and_its_slots_come_back(
    server: Responder, link: Link
) -> None:
    staged = Staged(link)
    seen: list[list[int]] = []

    def copy(body: Any) -> Body:
        seen.append(staged.seen(body))
        return StoreReply(held=0, copied=len(body.keys) // 16)

    server.handlers[Op.STORE] = copy
    for key in range(7, 27):  # far more than the ring has slots
        bind(staged.saver, names(key), alive={key: 0})
        assert staged.saver.hold(key, 100 + key, 0, ALL)
        staged.saver.finished([100 + key], None)
    until(lambda: counted(staged.saver, "chunks_saved") == 40, 10)
    assert seen == [[3, 4]] * 20
    assert staged.ring.num_lent == 0
    staged.saver.stop(5)


def test_layers_that_fired_are_not_read_again(server: Responder, link: Link) -> None:
    staged = Staged(link, by_layer=True)
    saver, mark = staged.saver, FakeMark(is_done=False)
    seen: list[list[int]] = []

    def copy(body: Any) -> Body:
        seen.append(staged.seen(body))
        return StoreReply(held=0, copied=len(body.keys) // 16)

    server.handlers[Op.STORE] = copy
    forward = ConnectorMetadata(
        1,
        alive=np.array([7], dtype=np.int64),
        valid_chunks=np.array([0], dtype=np.int32),
        names=(names(),),
        may_fire=True,
    )
    saver.bound(forward, None)
    saver.layer_done(0, mark)
    saver.layer_done(1, mark)
    saver.launched()
    mark.is_done = True
    until(lambda: not saver.counters().get("chunks_staged_by_layer") and staged.ring.num_lent == 1)
    bind(saver)  # the wave is closed
    until(lambda: counted(saver, "chunks_staged_by_layer") == 2)
    staged.flat[:] = 99  # nobody may read the pool for these chunks any more
    bind(saver, alive={7: 2})
    assert until(lambda: seen) == [[3, 4]]
    saver.stop(5)

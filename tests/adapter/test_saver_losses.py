"""The saver when answers do not come, or too much comes: nothing leaks and nothing is starved."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.journal import Journal
from adapter.link import Link
from adapter.metadata import ConnectorMetadata, SaveNames
from adapter.saver import Saver
from protocol.errors import ErrorCode
from protocol.messages import Op
from tests.adapter.hostlike import FakeMark
from tests.adapter.linking import joined_link
from tests.adapter.responder import Responder, until
from tests.adapter.test_saver import ALL, GEO, Staged, bind, counted, names, publish, refuse


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        server.handlers[Op.COMMIT] = publish
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


def test_slots_of_a_store_without_an_answer_wait_for_the_answer_to_its_cancel(
    server: Responder, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapter.saver.STORE_TIMEOUT_S", 0.3)
    monkeypatch.setattr("adapter.saver.SETTLE_TIMEOUT_S", 0.3)
    server.mute |= {Op.STORE, Op.CANCEL}
    staged = Staged(link)
    bind(staged.saver, names(), alive={7: 2})
    (store,) = until(lambda: server.bodies(Op.STORE))
    until(lambda: len(server.bodies(Op.CANCEL)) > 1)  # asked again, and still not answered
    assert {cancel.store for cancel in server.bodies(Op.CANCEL)} == {store.store}
    assert staged.ring.num_lent == 1
    server.mute.clear()
    until(lambda: staged.ring.num_lent == 0)
    staged.saver.stop(5)


def test_slots_lent_to_a_server_that_is_gone_come_back_with_the_next_registration(
    server: Responder, link: Link
) -> None:
    server.mute.add(Op.STORE)
    staged = Staged(link)
    bind(staged.saver, names(), alive={7: 2})
    (store,) = until(lambda: server.bodies(Op.STORE))
    server.handlers[Op.STORE] = refuse(ErrorCode.UNKNOWN_SESSION)
    server.mute.clear()
    bind(staged.saver, names(8), alive={8: 2})
    until(lambda: staged.saver._joined is not None and staged.saver._joined.session > store.session)
    until(lambda: staged.ring.num_lent == 0)
    staged.saver.stop(5)


def test_slots_come_back_when_the_server_stops_answering_before_a_commit(
    server: Responder, link: Link
) -> None:
    staged = Staged(link)
    bind(staged.saver, names(), alive={7: 2})
    until(lambda: "chunks_held_already" in staged.saver.counters())  # copied; a proof is missing
    link._breaker.trip("as the test wants it", time.monotonic_ns())
    # One turn has something to commit and something to stage.
    bind(staged.saver, names(8), alive={7: 2, 8: 2})
    until(lambda: counted(staged.saver, "saves_dropped_server_lost") == 2)
    until(lambda: staged.ring.num_lent == 0)
    staged.saver.stop(5)


def test_only_stores_that_went_out_are_cancelled(server: Responder, link: Link) -> None:
    saver = Saver(link, GEO, 100, Journal(logging.getLogger("test")))
    saver.start()
    bind(saver, names(), alive={7: 2})
    until(lambda: "chunks_held_already" in saver.counters())  # copied; a proof is missing
    bind(saver, alive={7: 2})
    until(lambda: counted(saver, "chunks_saved") == 2)
    link._breaker.trip("as the test wants it", time.monotonic_ns())
    bind(saver, names(first=2), names(8), alive={7: 4, 8: 2})
    until(lambda: counted(saver, "saves_dropped_server_lost") == 2)
    until(lambda: not link.is_breaker_open)
    bind(saver, names(9), alive={9: 2})
    until(lambda: len(server.bodies(Op.STORE)) == 2)  # what is to be cancelled went before it
    assert server.bodies(Op.CANCEL) == []
    saver.stop(5)


def test_layers_that_never_end_keep_nothing_else_waiting(server: Responder, link: Link) -> None:
    staged = Staged(link, by_layer=True, slots=16)
    saver, stop = staged.saver, threading.Event()
    assert saver._stager is not None
    stage_layer = saver._stager.stage_layer

    def slowly(layer: int, runs: Any) -> bool:
        time.sleep(0.01)
        return stage_layer(layer, runs)

    saver._stager.stage_layer = slowly  # type: ignore[method-assign]

    def compute() -> None:
        """Forwards that are faster than their layers are copied."""
        for key in range(20, 10_000):
            saver.bound(
                ConnectorMetadata(
                    1,
                    alive=np.array([key], dtype=np.int64),
                    valid_chunks=np.array([0], dtype=np.int32),
                    names=(SaveNames(100 + key, key, 0, b"", b"k" * 16, np.array([[5]])),),
                    ended=np.array([key - 5], dtype=np.int64),
                    may_fire=True,
                ),
                None,
            )
            saver.layer_done(0, FakeMark())
            saver.layer_done(1, FakeMark())
            if stop.wait(0.004):
                return

    bind(saver, names(), alive={7: 0})
    engine = threading.Thread(target=compute)
    engine.start()
    try:
        until(lambda: len(saver._layers._waves) > 2)  # type: ignore[union-attr]
        assert saver.hold(7, 107, 2, ALL)
        saver.finished([107], None)
        assert until(saver.take_saved) == [107]
    finally:
        stop.set()
        engine.join(5)
        saver.stop(5)


def have_gone(server: Responder, keys: Iterable[int]) -> bool:
    return {store.request for store in server.bodies(Op.STORE)} >= set(keys)


def has_counted(saver: Saver, name: str, least: int) -> bool:
    return counted(saver, name) >= least


def test_more_lost_stores_than_a_connection_takes_are_cancelled_bit_by_bit(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapter.breaker.CALM_NS", 0)
    monkeypatch.setattr("adapter.breaker.FIRST_DELAY_NS", 60_000_000_000)
    with Responder(short_dir, heartbeat_s=60) as server, joined_link(server.url) as link:
        until(lambda: server.bodies(Op.PING))  # the only answer that would close the breaker
        time.sleep(0.1)
        server.mute |= {Op.STORE, Op.CANCEL}
        saver = Saver(link, GEO, 100, Journal(logging.getLogger("test")))
        saver.start()
        for turn in range(1, 11):  # somebody else's calls run out of time again and again
            keys = range(8 * turn, 8 * turn + 6)
            bind(saver, *(names(key, (1,)) for key in keys), alive=dict.fromkeys(keys, 1))
            until(partial(have_gone, server, keys))
            lost = counted(saver, "saves_dropped_server_lost")
            link._breaker.trip("as the test wants it", time.monotonic_ns())
            bind(saver, names(100 + turn, (1,)), alive={100 + turn: 1})  # to be sent now
            until(partial(has_counted, saver, "saves_dropped_server_lost", lost + 6))
            link._breaker.close(time.monotonic_ns())
        server.mute.clear()
        stores = {store.store for store in server.bodies(Op.STORE) if store.request < 100}
        assert len(stores) == 60
        until(lambda: {cancel.store for cancel in server.bodies(Op.CANCEL)} >= stores)
        bind(saver, names(120), alive={120: 2})
        until(partial(have_gone, server, [120]))
        saver.stop(5)


def test_an_idle_engine_gets_slots_back_that_were_staged_by_layer_for_nothing(
    server: Responder, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was cancelled in its forward is never named again, and no bind comes."""
    monkeypatch.setattr("adapter.layersaves.PROOF_S", 0.3)
    staged = Staged(link, by_layer=True)
    forward = ConnectorMetadata(
        1,
        alive=np.array([7], dtype=np.int64),
        valid_chunks=np.array([0], dtype=np.int32),
        names=(names(),),
        may_fire=True,
    )
    staged.saver.bound(forward, None)
    for layer in range(2):
        staged.saver.layer_done(layer, FakeMark())
    bind(staged.saver)
    assert staged.ring.num_lent == 1
    until(lambda: staged.ring.num_lent == 0, 5)
    assert not server.bodies(Op.STORE)
    staged.saver.stop(5)


@pytest.mark.parametrize("code", [ErrorCode.BUSY, ErrorCode.DEADLINE_EXCEEDED])
def test_a_withdrawal_that_is_put_off_is_repeated(
    server: Responder, link: Link, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    monkeypatch.setattr("adapter.saver.STORE_TIMEOUT_S", 0.3)
    server.mute.add(Op.STORE)
    server.handlers[Op.CANCEL] = refuse(code)
    staged = Staged(link)
    bind(staged.saver, names(), alive={7: 2})
    (store,) = until(lambda: server.bodies(Op.STORE))
    until(lambda: len(server.bodies(Op.CANCEL)) > 2)
    assert {cancel.store for cancel in server.bodies(Op.CANCEL)} == {store.store}
    assert staged.ring.num_lent == 1  # it may still be read
    del server.handlers[Op.CANCEL]
    until(lambda: staged.ring.num_lent == 0)
    count = len(server.bodies(Op.CANCEL))
    time.sleep(0.3)
    assert len(server.bodies(Op.CANCEL)) == count
    staged.saver.stop(5)


@pytest.mark.parametrize(
    ("code", "is_withdrawn"),
    [
        (ErrorCode.BUSY, True),
        (ErrorCode.DEADLINE_EXCEEDED, True),
        (ErrorCode.INTERNAL, True),
        (ErrorCode.UNKNOWN_STORE, False),
    ],
)
def test_a_save_whose_commit_was_refused_leaves_no_reservation(
    server: Responder, link: Link, code: ErrorCode, is_withdrawn: bool
) -> None:
    server.handlers[Op.COMMIT] = refuse(code)
    saver = Saver(link, GEO, 100, Journal(logging.getLogger("test")))
    saver.start()
    bind(saver, names(), alive={7: 2})
    (store,) = until(lambda: server.bodies(Op.STORE))

    # The report that proves it alive must come after the STORE's answer.
    def is_sent() -> bool:
        bind(saver, alive={7: 2})
        return bool(server.bodies(Op.COMMIT))

    until(is_sent)
    if is_withdrawn:
        until(lambda: server.bodies(Op.CANCEL))
    else:
        time.sleep(0.3)
    cancels = [cancel.store for cancel in server.bodies(Op.CANCEL)]
    assert cancels == [store.store] * is_withdrawn
    saver.stop(5)

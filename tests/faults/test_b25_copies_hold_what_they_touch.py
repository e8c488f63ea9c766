"""B25: while a copy or a read is under way, its memory is nobody else's, however long it takes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from protocol.messages import Cancel, Done, StoreReply, Unregister
from tests.faults.bystander import engaged, fill, read_all, stats, submit_store
from tests.faults.childengine import NUM_CHUNKS, ChildEngine, expected_pages
from tests.wire.client import Engine, expect, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until


@contextmanager
def stopped_copier(server: ServerProcess) -> Iterator[None]:
    """SIGSTOPs the copier: copies take as long as the block does."""
    [pid] = server.children()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def begin_store(engine: Engine, keys: list[bytes], store: int = 500) -> int:
    """Sends a STORE and waits until its copy is the copier's."""
    seq = submit_store(engine, keys, list(range(len(keys))), store)
    assert wait_until(lambda: stats(engine)["copies_in_flight"] > 0)
    return seq


def is_silent(engine: Engine, seq: int) -> bool:
    try:
        engine.wire.reply(seq, 0.3)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("way", ["cancel", "unregister"])
def test_cancel_and_unregister_are_answered_when_no_copy_can_touch_the_pool(
    own_server: ServerProcess, way: str
) -> None:
    with engaged(own_server, make_namespace(model=f"b25/{way}")) as engine:
        assert engine.save(make_keys(1, 64), list(range(64))) == 64  # the copier is up and mapped
        keys = make_keys(2, 64)
        with stopped_copier(own_server):
            stored = begin_store(engine, keys)
            if way == "cancel":
                asked = engine.wire.submit(Cancel(session=engine.session, store=500))
            else:
                asked = engine.wire.submit(Unregister(session=engine.session))
            assert is_silent(engine, asked)
        expect(engine.wire.reply(asked), Done)
        reply = engine.wire.reply(stored)
        assert reply.error is not None or isinstance(reply.body, StoreReply)
        if way == "unregister":
            engine.session = 0
            return
        assert engine.lookup(keys).ready == 0
        assert wait_until(lambda: stats(engine)["slots_reserved"] == 0)  # freed in slices


def test_slots_of_a_withdrawn_copy_are_used_again_only_when_it_ended(
    own_server: ServerProcess,
) -> None:
    """A STORE times out while its copy hangs; others store under pressure; all bytes are right."""
    with (
        engaged(own_server, make_namespace(model="b25/slow")) as slow,
        engaged(own_server, make_namespace(model="b25/quick")) as quick,
    ):
        fill(slow, 1)
        assert slow.save(make_keys(1, 64), list(range(64))) == 64
        with stopped_copier(own_server):
            begin_store(slow, make_keys(2, 64))
            asked = slow.wire.submit(Cancel(session=slow.session, store=500))
            # These wait behind the stopped copier, in slots of their own.
            fill(quick, 2)
            others = [begin_store(quick, make_keys(10 + n, 64), 600 + n) for n in range(4)]
        expect(slow.wire.reply(asked), Done)
        for number, seq in enumerate(others):
            stored = expect(quick.wire.reply(seq), StoreReply)
            assert stored.copied == 64
            assert quick.commit(600 + number, 64).published == 64
        for number in range(4):
            data = read_all(quick, make_keys(10 + number, 64))
            assert np.array_equal(data, quick.pages)
        assert np.array_equal(read_all(slow, make_keys(1, 64)), slow.pages)


def test_b24_p02_a_reader_stopped_for_long_finds_its_bytes(own_server: ServerProcess) -> None:
    """RETRIEVE, SIGSTOP, three arenas' worth of other chunks, SIGCONT, and only then the read."""
    model = "b25/reader"
    with engaged(own_server, make_namespace(model=model)) as engine:
        engine.pages[:] = expected_pages(engine)
        keys = make_keys(1, NUM_CHUNKS)
        assert engine.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
        with ChildEngine(own_server, model, "retrieve") as reader:
            os.kill(reader.pid, signal.SIGSTOP)
            for seed in range(100, 196):
                fill(engine, seed)
                assert engine.save(make_keys(seed, 64), list(range(64))) > 0
            assert stats(engine)["pinned_slots"] >= NUM_CHUNKS
            os.kill(reader.pid, signal.SIGCONT)
            reader.tell()
            reader.expect("right")
        assert wait_until(lambda: stats(engine)["pinned_slots"] == 0)


def test_a_readers_mapping_stays_right_over_shutdown(own_server: ServerProcess) -> None:
    """SIGTERM with a lease retrieved and a copy in flight: bounded, and the mapping is the same."""
    model = "b25/shutdown"
    with engaged(own_server, make_namespace(model=model)) as engine:
        engine.pages[:] = expected_pages(engine)
        keys = make_keys(1, NUM_CHUNKS)
        assert engine.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
        with ChildEngine(own_server, model, "retrieve") as reader:
            assert own_server.terminate() == 0
            reader.tell()
            reader.expect("right")
    assert "Traceback" not in own_server.log()

"""P03: what processes of a former server may still touch, the next one does not hand out.

An old copier that is still in a copy, and one that cannot die; an old engine stopped in the middle
of a load, under pressure, CLEAR and less room, over several restarts; and the end of waiting: by
the process's exit, by its word, or by the kernel's, where the process cannot be watched. Real
processes; the bytes are looked at in the files.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.messages import ChunkCountReply, Clear
from tests.faults import childengine
from tests.faults.bystander import submit_store
from tests.faults.childengine import ChildEngine
from tests.faults.copierfaults import CopierFaults
from tests.faults.undying import Undying
from tests.server.heirs import CHUNKS, Kept, connect, drain, launch, let_go, stats, try_save
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, is_alive, wait_until

SMALL = ("--l1-size", "8M")
PRESSURE = range(100, 140)
"""Prompts of 20 chunks of 16 KiB: twice what the arena holds."""
GONE_S = 2.0


def slots_of(arena: Path) -> dict[str, str]:
    """A digest of each extent's slots, without its records: the bytes that engines read."""
    found = {}
    for path in sorted(arena.glob("*.extent")):
        data = path.read_bytes()
        begin = int.from_bytes(data[48:56], "little")
        found[path.name] = hashlib.sha256(data[begin:]).hexdigest()
    return found


def press(engine: Engine, kept: Kept) -> None:
    """Stores much more than there is room for."""
    for seed in PRESSURE:
        try_save(kept, engine, seed)


def settled(engine: Engine) -> bool:
    """Whether nothing is awaited and everything is unsealed."""
    found = stats(engine)
    return found["parties_awaited"] == 0 and found["arena_quarantined_bytes"] == 0


def saved_for_child(engine: Engine) -> None:
    """What ``childengine`` looks for."""
    engine.pages[: childengine.NUM_CHUNKS] = childengine.expected_pages(engine)[
        : childengine.NUM_CHUNKS
    ]
    keys = make_keys(1, childengine.NUM_CHUNKS)
    assert engine.save(keys, list(range(childengine.NUM_CHUNKS))) == childengine.NUM_CHUNKS


MODEL = make_namespace().model_id


# --- old copiers ------------------------------------------------------------------------------


def test_p03_an_old_copier_goes_on_writing(short_dir: Path, shm_dir: Path) -> None:
    faults, kept = CopierFaults(short_dir / "faults"), Kept()
    arguments = (*SMALL, "--extent-size", "1M", "--arena-at-exit", "keep")
    started = ServerProcess(short_dir, shm_dir / "a", *arguments, environ=faults.environ)
    with started as server, connect(server) as former:
        assert kept.save(former, range(1, 4)) == 3 * CHUNKS
        kept.fill(former, 4)
        faults.arm("copy", "mid", "LINGER")
        submit_store(former, kept.keys[4], list(range(CHUNKS)), 900)
        assert wait_until(lambda: not faults.is_armed("copy", "mid"))
        [copier] = server.children()
        server.kill()
    time.sleep(0.2)
    assert is_alive(copier)
    with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as engine:
        try:
            assert kept.check(engine) == 3 * CHUNKS
            drain(engine, former, 1)
            assert stats(engine)["arena_quarantined_bytes"] > 0
            before = slots_of(shm_dir / "a")
            press(engine, kept)
            after = slots_of(shm_dir / "a")
            assert {name: after[name] for name in before} == before
            assert len(after) > len(before)
            kept.check(engine)
        finally:
            os.kill(copier, signal.SIGCONT)
        begun = time.monotonic()
        assert wait_until(lambda: not is_alive(copier))
        assert wait_until(lambda: settled(engine), GONE_S)
        assert time.monotonic() - begun < 10
        wrote = slots_of(shm_dir / "a")
        assert wrote != after  # it did write, late, into slots that nobody had
        kept.check(engine)
        press(engine, kept)
        kept.check(engine)
        assert slots_of(shm_dir / "a") != wrote
        assert "WARNING" not in server.log()


def test_p03_an_old_copier_that_cannot_die_is_waited_for(short_dir: Path, shm_dir: Path) -> None:
    kept = Kept()
    with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as former:
        assert kept.save(former, range(1, 4)) == 3 * CHUNKS
        [copier] = server.children()
        held = Undying(copier)
        server.kill()
    with held, launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as engine:
        assert kept.check(engine) == 3 * CHUNKS
        drain(engine, former, 1)
        before = slots_of(shm_dir / "a")
        press(engine, kept)
        after = slots_of(shm_dir / "a")
        assert {name: after[name] for name in before} == before
        held.let_go()
        assert wait_until(lambda: settled(engine), GONE_S)
        kept.check(engine)


# --- old engines ------------------------------------------------------------------------------


def clear(engine: Engine, kept: Kept) -> None:
    """What the engine reads is cleared by an operator."""
    engine.wire.call(Clear(), ChunkCountReply)
    press(engine, kept)


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
@pytest.mark.parametrize("trouble", [press, clear])
@pytest.mark.parametrize("num_restarts", [1, 3])
def test_p03_an_old_engine_stopped_in_a_load_reads_the_right_bytes(
    short_dir: Path,
    shm_dir: Path,
    how: str,
    trouble: Callable[[Engine, Kept], None],
    num_restarts: int,
) -> None:
    kept = Kept()
    with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as former:
        saved_for_child(former)
        assert kept.save(former, range(10, 13)) == 3 * CHUNKS
        child = ChildEngine(server, MODEL, "retrieve")
        os.kill(child.pid, signal.SIGSTOP)
        server.kill() if how == "kill -9" else server.terminate()
    with child:
        for life in range(num_restarts):
            with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as engine:
                if life == 0:
                    assert kept.check(engine) == 3 * CHUNKS
                drain(engine, former, 1)
                trouble(engine, kept)
                kept.check(engine)
                if life == num_restarts - 1:
                    os.kill(child.pid, signal.SIGCONT)
                    child.tell()
                    child.expect("right")
                    child.kill()
                    assert wait_until(lambda e=engine: settled(e), GONE_S)
                    press(engine, kept)
                    kept.check(engine)
                server.kill() if how == "kill -9" else server.terminate()
                former = engine


def test_p03_less_room_takes_the_files_and_not_the_bytes(short_dir: Path, shm_dir: Path) -> None:
    kept = Kept()
    with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as engine:
        saved_for_child(engine)
        child = ChildEngine(server, MODEL, "retrieve")
        os.kill(child.pid, signal.SIGSTOP)
        kept.save(engine, range(10, 20))
        let_go(engine)
        server.kill()
    with child, launch(short_dir, shm_dir / "a", "--l1-size", "2M") as server:
        assert wait_until(lambda: "dropped files" in server.log())
        with connect(server) as engine:
            press(engine, kept)
            kept.check(engine)
            os.kill(child.pid, signal.SIGCONT)
            child.tell()
            child.expect("right")


def test_p03_an_engine_that_never_comes_back_is_not_waited_for_longer_than_it_lives(
    short_dir: Path, shm_dir: Path
) -> None:
    kept = Kept()
    with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as former:
        saved_for_child(former)
        kept.save(former, range(10, 13))
        children = [ChildEngine(server, MODEL, "retrieve") for _ in range(2)]
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        server.kill()
    children[0].kill()  # while there is no server
    started = launch(short_dir, shm_dir / "a", *SMALL)
    with children[0], children[1], started as server, connect(server) as engine:
        assert kept.check(engine) == 3 * CHUNKS
        drain(engine, former, 1)
        children[1].kill()
        assert wait_until(lambda: settled(engine), GONE_S)
        press(engine, kept)
        kept.check(engine)


def test_p03_drained_is_believed_of_the_own_process(short_dir: Path, shm_dir: Path) -> None:
    kept = Kept()
    with launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as first:
        kept.save(first, range(10, 13))
        child = ChildEngine(server, MODEL, "attend")
        server.kill()
    with child, launch(short_dir, shm_dir / "a", *SMALL) as server, connect(server) as engine:
        assert stats(engine)["parties_awaited"] == 2
        before = slots_of(shm_dir / "a")
        drain(engine, first, 1)
        press(engine, kept)
        after = slots_of(shm_dir / "a")
        assert {name: after[name] for name in before} == before  # the child has said nothing
        child.kill()
        assert wait_until(lambda: settled(engine), GONE_S)
        press(engine, kept)
        kept.check(engine)


def test_p03_a_kind_that_finds_no_room_for_this_reason_is_told_to_come_again(
    short_dir: Path, shm_dir: Path
) -> None:
    tiny = ("--l1-size", "2M", "--extent-size", "1M")
    kept = Kept()
    with launch(short_dir, shm_dir / "a", *tiny) as server, connect(server) as first:
        kept.save(first, range(10, 16))
        server.kill()
    other = make_namespace(model="test/other")
    with launch(short_dir, shm_dir / "a", *tiny) as server:
        with Engine(server.url, server.side_path, other, num_pages=CHUNKS) as engine:
            with pytest.raises(ReplyError) as caught:
                engine.register()
            assert caught.value.code == ErrorCode.NO_ROOM
            let_go(first)
            engine.side.send(
                side.pack(side.Drained(epoch=first.hello.epoch, token=first.welcome.token))
            )
            assert wait_until(lambda: settled(engine), GONE_S)
        with connect(server, other) as engine:
            mine = Kept(namespace=other)
            assert mine.save(engine, range(1, 2)) == CHUNKS
            assert mine.check(engine) == CHUNKS

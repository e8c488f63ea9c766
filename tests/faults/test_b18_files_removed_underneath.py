"""B18: what somebody removes under a running server: extents, the arena's folder, the sockets.

systemd does so when the last login of a user ends (RemoveIPC), people do it by mistake. Engines
that are there go on, new ones get memory or are told what is wrong, the end is clean, and nothing
wrong is served afterwards.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.side import SideConnection
from protocol.errors import ErrorCode, ReplyError, UnreachableError
from protocol.messages import Done, Ping
from tests.faults.bystander import Bystander, engaged, fill, read_all, stats
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

SIZE = ("--l1-size", "64M", "--extent-size", "1M")
KEEP = (*SIZE, "--arena-at-exit", "keep")


@pytest.fixture
def arena(shm_dir: Path) -> Path:
    return shm_dir / "a"


@pytest.fixture
def kept(short_dir: Path, arena: Path) -> Iterator[ServerProcess]:
    """A server that keeps its arena when it ends."""
    with ServerProcess(short_dir, arena, *KEEP) as process:
        yield process


def remove_ipc(*folders: Path) -> None:
    """What systemd does: everything of the user's, whatever it is, with nobody asked."""
    for folder in folders:
        shutil.rmtree(folder)


def save_some(engine: Engine, seed: int, count: int) -> list[bytes]:
    fill(engine, seed)
    keys = make_keys(seed, count)
    assert engine.save(keys, list(range(count))) == count
    return keys


def test_the_extents_go_and_everybody_goes_on(kept: ServerProcess, arena: Path) -> None:
    bystander = Bystander(kept)
    for path in arena.glob("*.extent"):
        path.unlink()
    bystander.check()
    with engaged(kept, bystander.engine.namespace) as late:
        # The same files, by descriptor: what was saved before it came is there.
        assert late.extents
        assert stats(late)["chunks"] >= 24
    with engaged(kept, make_namespace(model="b18/new")) as other:
        save_some(other, 3, 32)
    bystander.check()
    bystander.close()
    assert "Traceback" not in kept.log()


def test_the_whole_folder_goes_and_new_engines_get_memory(kept: ServerProcess, arena: Path) -> None:
    bystander = Bystander(kept)
    remove_ipc(arena)
    bystander.check()
    with engaged(kept, make_namespace(model="b18/new")) as other:
        save_some(other, 3, 64)
        save_some(other, 4, 64)  # in a second extent
        read_all(other, make_keys(3, 64))
        assert stats(other)["complaint_arena_removed"] == 1
    bystander.check()
    assert kept.log().count("arena_removed") == 1
    assert "Traceback" not in kept.log()
    assert {path.name for path in arena.iterdir()} >= {"lock", "namespaces", "parties"}
    assert not (arena / "arena").exists()
    bystander.close()


def test_its_next_server_takes_nothing_of_it_over(
    kept: ServerProcess, short_dir: Path, arena: Path
) -> None:
    """What said who reads the extents is gone: they could be overwritten under a reader."""
    with engaged(kept, make_namespace(model="b18/model")) as engine:
        keys = save_some(engine, 1, 16)
        remove_ipc(arena)
        save_some(engine, 2, 64)  # its folder is made again for these
        save_some(engine, 3, 64)
        assert list(arena.glob("*.extent"))
        kept.kill()
        with (
            ServerProcess(short_dir, arena, *KEEP) as successor,
            engaged(successor, make_namespace(model="b18/model")) as again,
        ):
            assert stats(again)["chunks"] == 0
            assert again.lookup(keys).ready == 0
            assert again.lookup(make_keys(3, 64)).ready == 0
            save_some(again, 4, 16)
            assert "Traceback" not in successor.log()


def test_a_copier_that_dies_after_that_is_replaced(kept: ServerProcess, arena: Path) -> None:
    bystander = Bystander(kept)
    remove_ipc(arena)
    (copier,) = kept.children()
    os.kill(copier, 9)
    assert wait_until(lambda: bool(kept.children()) and kept.children() != [copier], 20)

    def works() -> bool:
        try:
            bystander.check()
        except ReplyError as error:
            if error.code != ErrorCode.UNAVAILABLE:
                raise
            return False
        return True

    assert wait_until(works, 20, every_s=0.2)
    bystander.close()


@pytest.mark.parametrize("at_exit", ["keep", "remove"])
@pytest.mark.parametrize("stood", [False, True])
def test_the_end_is_clean(short_dir: Path, arena: Path, at_exit: str, stood: bool) -> None:
    arguments = (*SIZE, "--arena-at-exit", at_exit)
    with ServerProcess(short_dir, arena, *arguments) as server:
        with engaged(server, make_namespace(model="b18/model")) as engine:
            save_some(engine, 1, 16)
            remove_ipc(arena)
            if stood:
                save_some(engine, 2, 64)
                save_some(engine, 3, 64)
                assert arena.exists()
        assert server.terminate() == 0
        assert "Traceback" not in server.log()
    assert not arena.exists()
    assert [path.name for path in short_dir.iterdir()] == ["server.log"]


def test_a_folder_that_another_server_took_is_left_to_it(
    kept: ServerProcess, short_dir: Path, arena: Path
) -> None:
    bystander = Bystander(kept)
    remove_ipc(arena)
    elsewhere = short_dir / "x"
    elsewhere.mkdir()
    with ServerProcess(elsewhere, arena, *SIZE) as second:
        theirs = Bystander(second)
        with Engine(kept.url, kept.side_path, make_namespace(model="b18/new")) as other:
            with pytest.raises(ReplyError, match=f"in use by pid {second.pid}") as caught:
                other.register()
            assert caught.value.code == ErrorCode.NO_ROOM
        bystander.check()  # in what it has, it goes on
        bystander.close()
        assert kept.terminate() == 0
        theirs.check()
        assert (arena / "lock").exists()
        theirs.close()
        assert second.terminate() == 0
    assert "Traceback" not in kept.log()


@pytest.mark.parametrize("gone", [["s"], ["s.side"], ["s", "s.side", "s.lock"]])
def test_sockets_go_and_who_is_connected_goes_on(
    kept: ServerProcess, short_dir: Path, arena: Path, gone: list[str]
) -> None:
    bystander = Bystander(kept)
    for name in gone:
        (short_dir / name).unlink()
    bystander.check()
    sockets = [name for name in gone if name != "s.lock"]
    assert wait_until(lambda: kept.log().count("socket_removed") == 1, 10)
    assert any(f"somebody removed {short_dir / name}:" in kept.log() for name in sockets)
    if "s.side" in gone:
        with pytest.raises(UnreachableError, match="no server at"):
            SideConnection(kept.side_path)
    # What the log advises: a restart, after which what is cached is there again.
    keys = save_some(bystander.engine, 9, 8)
    namespace = bystander.engine.namespace
    bystander.close()
    assert kept.terminate() == 0
    with (
        ServerProcess(short_dir, arena, *KEEP) as successor,
        engaged(successor, namespace) as engine,
    ):
        assert wait_until(lambda: engine.lookup(keys).ready == 8, 10)
        engine.wire.call(Ping(), Done)


def test_an_engine_registers_again_and_saves_after_the_folder_went(
    kept: ServerProcess, arena: Path
) -> None:
    name = make_namespace(model="b18/model")
    with engaged(kept, name) as engine:
        keys = save_some(engine, 1, 16)
    remove_ipc(arena)
    begun_s = time.monotonic()
    with engaged(kept, name) as engine:
        assert time.monotonic() - begun_s < 5
        assert wait_until(lambda: engine.lookup(keys).ready == 16, 10)
        save_some(engine, 2, 32)
    assert "Traceback" not in kept.log()

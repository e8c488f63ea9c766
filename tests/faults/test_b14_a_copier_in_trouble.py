"""B14: a copier that hangs, faults or is killed at any command; others do not notice.

The trouble is in the copier itself (``tests/faults/injected``), before, amid and after each of its
commands. Every STORE is answered, another copier takes over, nothing stays reserved, no byte is
wrong, and LOOKUPs go on within a second meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ErrorCode
from protocol.messages import (
    ChunkCountReply,
    Clear,
    Done,
    RegisterKvCacheReply,
    Unregister,
)
from protocol.namespace import fingerprint
from server.shell.link import STALL_LIMIT_S
from tests.faults.bystander import (
    Bystander,
    engaged,
    fill,
    is_saved,
    read_all,
    read_slots,
    retrieve,
    stats,
)
from tests.faults.copierfaults import CopierFaults, faulty_server
from tests.faults.test_b25_copies_hold_what_they_touch import begin_store
from tests.faults.test_p02_late_wakers_write_nothing import registration
from tests.faults.undying import Undying
from tests.wire.client import Engine, expect, make_keys, make_namespace
from tests.wire.process import ServerProcess, is_alive, wait_until

LOOKUP_LIMIT_S = 1.0
SIZES = ("--l1-size", "32M", "--extent-size", "2M")

Faulty = tuple[ServerProcess, CopierFaults]


@pytest.fixture
def faulty(short_dir: Path, shm_dir: Path) -> Iterator[Faulty]:
    with faulty_server(short_dir, shm_dir / "a", *SIZES) as made:
        yield made


class Lookups(threading.Thread):
    """An engine that asks all the time, and how long its slowest question took."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self.server = server
        self.slowest_s = 0.0
        self.num_asked = 0
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._begun = threading.Event()

    def run(self) -> None:
        try:
            with engaged(self.server, make_namespace(model="b14/asks")) as engine:
                keys = make_keys(99, 8)
                assert engine.save(keys, list(range(8))) == 8
                while not self._over.wait(0.01):
                    begun_s = time.monotonic()
                    assert engine.lookup(keys).ready == 8
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
                    self.num_asked += 1
                    self._begun.set()
                # Its leaving needs a copier as well, which is there by then.
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._begun.set()

    def __enter__(self) -> Lookups:
        self.start()
        assert self._begun.wait(20)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self.join(30)
        if exc_info[0] is None:
            assert self.error is None
            assert self.num_asked > 5
            assert self.slowest_s < LOOKUP_LIMIT_S


def is_clean(engine: Engine) -> bool:
    values = stats(engine)
    names = ("slots_reserved", "copies_in_flight", "stores", "copiers_stuck", "copies_stranded")
    return all(values[name] == 0 for name in names)


def provoke(server: ServerProcess, faults: CopierFaults, command: str, when: str) -> None:
    """Has the copier meet every command; whatever the engine asked is answered.

    One that is never idle while it has an extent does not populate it: it is given more time.
    """
    for _ in range(5):
        _pass_through(server)
        if wait_until(lambda: not faults.is_armed(command, when), 4):
            return
    raise AssertionError((command, when))


def _pass_through(server: ServerProcess) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    with engaged(server, make_namespace(model=f"b14/{seed}")) as engine:
        fill(engine, 3)
        keys = make_keys(seed, 32)
        assert wait_until(lambda: is_saved(engine, keys), 20, 0.05)
        assert np.array_equal(read_all(engine, keys), engine.pages[:32])
        engine.wire.call(Clear(fingerprint=fingerprint(engine.namespace)), ChunkCountReply)
    # The model's last engine left, so its empty extents are unmapped, too.


COMMANDS = ("map_pool", "map_extent", "populate_step", "copy", "unmap_pool", "unmap_extent")


@pytest.mark.parametrize(
    ("action", "commands"),
    [("SIGKILL", COMMANDS), ("SIGSEGV", ("copy", "map_pool")), ("SIGBUS", ("copy", "map_extent"))],
)
def test_it_dies_at_each_command(faulty: Faulty, action: str, commands: tuple[str, ...]) -> None:
    server, faults = faulty
    watcher = Bystander(server)
    with Lookups(server):
        for command in commands:
            for when in ("before", "mid", "after") if command == "copy" else ("before", "mid"):
                [copier] = server.children()
                faults.arm(command, when, action)
                provoke(server, faults, command, when)
                assert wait_until(lambda old=copier: old not in server.children())
                assert wait_until(lambda: len(server.children()) == 1)
                assert wait_until(lambda: is_clean(watcher.engine)), stats(watcher.engine)
    assert wait_until(lambda: is_saved(watcher.engine, make_keys(8, 4)), 20, 0.05)
    watcher.check()
    watcher.close()
    assert "Traceback" not in server.log()


def test_a_copier_that_hangs_is_replaced_and_all_who_wait_are_answered(faulty: Faulty) -> None:
    """Hung amid a copy: others look up as ever; who needs a copier waits for the next one."""
    server, faults = faulty
    with (
        engaged(server, make_namespace(model="b14/hung")) as hung,
        engaged(server, make_namespace(model="b14/leaves")) as leaves,
        engaged(server, make_namespace(model="b14/comes"), register=False) as comes,
        Lookups(server),
    ):
        fill(hung, 1)
        fill(leaves, 2)
        kept = make_keys(1, 16)
        assert hung.save(kept, list(range(16))) == 16
        [copier] = server.children()
        faults.arm("copy", "mid", "SIGSTOP")
        begun_s = time.monotonic()
        stored = begin_store(hung, make_keys(2, 64))
        behind = begin_store(leaves, make_keys(3, 64))
        left = leaves.wire.submit(Unregister(session=leaves.session))
        pool = os.urandom(16)
        comes.side.offer(pool, comes.pool_fd, 64 * comes.page_bytes)
        registered = comes.wire.submit(registration(comes, pool))
        for engine, seq in ((hung, stored), (leaves, behind), (leaves, left)):
            engine.wire.reply(seq, 20)
        answer = expect(comes.wire.reply(registered, 20), RegisterKvCacheReply)
        assert time.monotonic() - begun_s < STALL_LIMIT_S + 6
        assert not is_alive(copier)
        leaves.session, comes.session = 0, answer.session
        while len(comes.extents) < answer.extents:
            comes.take_side_packet()
        assert wait_until(lambda: is_clean(hung)), stats(hung)
        assert hung.lookup(make_keys(2, 64)).ready == 0
        for engine, seed in ((hung, 4), (comes, 5)):
            fill(engine, seed)
            keys = make_keys(seed, 64)
            assert wait_until(lambda e=engine, k=keys: is_saved(e, k), 20, 0.05)
            assert np.array_equal(read_all(engine, keys), engine.pages)
    assert "Traceback" not in server.log()


def test_a_copier_that_cannot_die_keeps_its_slots_and_no_others(faulty: Faulty) -> None:
    """It hangs in the kernel, as on a dead device: killed, and still there (traced, here)."""
    server, faults = faulty
    with (
        engaged(server, make_namespace(model="b14/undying")) as hung,
        engaged(server, make_namespace(model="b14/others")) as other,
        Lookups(server),
    ):
        fill(hung, 1)
        assert hung.save(make_keys(1, 16), list(range(16))) == 16
        [copier] = server.children()
        with Undying(copier) as held:
            faults.arm("copy", "mid", "SIGSTOP")
            stored = begin_store(hung, make_keys(2, 64))
            reply = hung.wire.reply(stored, 30)
            assert reply.error is not None
            assert reply.error.code == ErrorCode.COPY_FAILED
            assert is_alive(copier)
            values = stats(other)
            assert (values["copiers_stuck"], values["slots_reserved"]) == (1, 64)
            left = hung.wire.submit(Unregister(session=hung.session))
            # The arena over and over: the slots it may still write are left out.
            fill(other, 6)
            keys = make_keys(20, 64)
            for seed in range(20, 60):
                keys = make_keys(seed, 64)
                assert wait_until(lambda now=keys: is_saved(other, now), 20, 0.05)
                assert stats(other)["slots_reserved"] >= 64
            assert np.array_equal(read_all(other, keys), other.pages)
            with pytest.raises(TimeoutError):
                hung.wire.reply(left, 0.2)
            held.let_go()
            expect(hung.wire.reply(left), Done)
            hung.session = 0
        assert wait_until(lambda: is_clean(other)), stats(other)
        assert not is_alive(copier)
        assert np.array_equal(read_all(other, keys), other.pages)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("command", ["map_pool", "unmap_pool"])
def test_a_pool_that_is_slow_to_come_or_go_delays_no_lookup(faulty: Faulty, command: str) -> None:
    """As a driver that takes its time to open or close a mapping."""
    server, faults = faulty
    with engaged(server, make_namespace(model="b14/beside")) as beside, Lookups(server) as asking:
        fill(beside, 1)
        faults.arm(command, "before", "3.0")
        begun_s = time.monotonic()
        with engaged(server, make_namespace(model="b14/slow")):
            pass
        assert time.monotonic() - begun_s >= 3.0
        assert asking.num_asked > 50
        keys = make_keys(1, 64)
        assert beside.save(keys, list(range(64))) == 64  # by the same copier: it was only slow
        assert np.array_equal(read_all(beside, keys), beside.pages)
    assert "copier_lost" not in server.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount of its own, which takes root")
def test_a_slot_without_memory_kills_the_copier_and_nothing_else(
    short_dir: Path, tmp_path: Path
) -> None:
    """A real SIGBUS: a hole was punched into an extent and its file system is full."""
    arena = tmp_path / "arena"
    arena.mkdir()
    mount = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=40m none "$0" && exec "$@"')
    with (
        ServerProcess(short_dir, arena / "a", *SIZES, prefix=(*mount, str(arena))) as server,
        Lookups(server),
    ):
        inside = Path(f"/proc/{server.pid}/root{arena}")
        with engaged(server, make_namespace(model="b14/hole")) as engine:
            fill(engine, 1)
            assert engine.save(make_keys(1, 64), list(range(64))) == 64
            found = engine.lookup(make_keys(1, 64))
            slots = retrieve(engine, found.lease, 64)
            [extent] = engine.extents.values()
            path = next((inside / "a").glob("*.extent"))
            used = {int(slot["slot"]) for slot in slots}
            free = [slot for slot in range(extent.geometry.num_slots) if slot not in used]
            punch(path, [extent.geometry.data_offset_bytes + at * 16_384 for at in free])
            filler = inside / "filler"
            fill_up(filler)
            for seed in (2, 3):
                assert not is_saved(engine, make_keys(seed, 32))
                assert wait_until(lambda: is_clean(engine)), stats(engine)
                assert wait_until(lambda: len(server.children()) == 1)
            assert wait_until(lambda: "ended with -7" in server.log())
            filler.unlink()
            assert wait_until(lambda: is_saved(engine, make_keys(4, 32)), 20, 0.05)
            assert np.array_equal(read_all(engine, make_keys(4, 32)), engine.pages[:32])
            assert np.array_equal(read_slots(engine, slots), engine.pages)
            assert engine.release(found.lease) == 64
    assert "Traceback" not in server.log()


def punch(path: Path, offsets: list[int]) -> None:
    """Takes the memory of 16 KiB at each offset away from a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    fd = os.open(path, os.O_RDWR)
    try:
        for offset in offsets:
            assert libc.fallocate(fd, 0x3, offset, 16_384) == 0  # PUNCH_HOLE | KEEP_SIZE
    finally:
        os.close(fd)


def fill_up(path: Path) -> None:
    """Takes all memory that a file system has left."""
    with open(path, "wb") as file:
        left = os.statvfs(path)
        os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_bsize)
    assert os.statvfs(path).f_bavail == 0

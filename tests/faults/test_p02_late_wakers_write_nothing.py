"""P02: a stopped process that wakes late cannot have spoilt anything: nobody writes elsewhere.

That a late reader still finds its bytes is in ``test_b25_copies_hold_what_they_touch.py``.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from protocol import side
from protocol.layout import MemfdMemory, Region, ShardPool
from protocol.messages import RegisterKvCache, RegisterKvCacheReply
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.faults.bystander import engaged, fill, read_all, stats
from tests.faults.childengine import ChildEngine
from tests.wire.client import Engine, expect, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until


def maps_of(pid: int, name: str) -> list[str]:
    """Lines of a process's mappings of files with such a name."""
    text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if re.search(name, line)]


def test_no_process_maps_anothers_memory_writable(server: ServerProcess, tmp_path: Path) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(22)
    rig.run_saved(prompt)
    assert rig.run(prompt).offered == 20
    own = maps_of(os.getpid(), r"\.extent")
    assert own
    assert all(line.split()[1] == "r--s" for line in own), own
    [copier] = server.children()
    pools = maps_of(copier, "kvkeep-pool")
    assert pools
    assert all(line.split()[1] == "r--s" for line in pools), pools
    assert maps_of(server.pid, "kvkeep-pool") == []
    rig.close()


def test_the_descriptors_given_away_cannot_write(server: ServerProcess) -> None:
    """An extent's descriptor allows reading alone: not writing, mapping writable or truncating."""
    with engaged(server, make_namespace(model="p02/fds"), register=False) as engine:
        pool = os.urandom(16)
        answer = engine.side.offer(pool, engine.pool_fd, 64 * engine.page_bytes)
        assert isinstance(answer, side.PoolAccepted)
        reply = engine.wire.call(registration(engine, pool), RegisterKvCacheReply)
        engine.session = reply.session
        packet, [fd] = engine.side.receive()
        assert isinstance(packet, side.ExtentGiven)
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        for spoil in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 0)):
            with pytest.raises(OSError):
                spoil()
        with pytest.raises(PermissionError):
            mmap.mmap(fd, packet.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        view = mmap.mmap(fd, packet.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        address = np.frombuffer(view, np.uint8).ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.mprotect(address, 4096, mmap.PROT_READ | mmap.PROT_WRITE) == -1
        os.close(fd)


def registration(engine: Engine, pool: bytes) -> RegisterKvCache:
    """What ``Engine.register`` sends, for tests that do the rest themselves."""
    page_bytes = engine.page_bytes
    region = Region(offset_bytes=0, size_bytes=page_bytes, stride_bytes=page_bytes)
    return RegisterKvCache(
        namespace=engine.namespace,
        rank=0,
        memory=MemfdMemory(pool=pool, size_bytes=64 * page_bytes),
        pools=(ShardPool(shard=0, num_pages=64, regions=(region,)),),
    )


def test_a_saver_that_sleeps_between_store_and_commit(own_server: ServerProcess) -> None:
    """Its COMMIT, sent when it wakes, publishes what was copied before, or nothing."""
    model = "p02/saver"
    with engaged(own_server, make_namespace(model=model)) as engine:
        keys = make_keys(1, 16)
        with ChildEngine(own_server, model, "reserve") as sleeper:
            os.kill(sleeper.pid, signal.SIGSTOP)
            for seed in range(50, 98):  # 48 MiB beside it
                fill(engine, seed)
                assert engine.save(make_keys(seed, 64), list(range(64))) > 0
            assert engine.lookup(keys).ready == 0
            os.kill(sleeper.pid, signal.SIGCONT)
            sleeper.tell("10")
            sleeper.expect("committed")
            expected = np.random.default_rng(5).integers(
                0, 256, (64, engine.page_bytes), dtype=np.uint8
            )
            assert np.array_equal(read_all(engine, keys[:10]), expected[:10])


def test_memory_of_a_stopped_reader_is_quarantined_until_it_exits(
    short_dir: Path, shm_dir: Path
) -> None:
    """Another model needs its extents: they count until the stopped one is gone, then they move."""
    sizes = ("--l1-size", "8M", "--extent-size", "2M")
    with (
        ServerProcess(short_dir, shm_dir / "a", *sizes) as server,
        engaged(server, make_namespace(model="p02/one")) as first,
        engaged(server, make_namespace(24_576, model="p02/two"), register=False) as second,
    ):
        for seed in range(6):  # the whole arena is the first model's
            assert first.save(make_keys(seed, 64), list(range(64))) == 64

        def is_whole() -> bool:  # else an extent that comes now hides one that goes
            first.pump()
            return stats(first)["extents_unmapped"] == 0

        assert wait_until(is_whole)
        num_mapped = len(first.extents)
        with ChildEngine(server, "p02/one", "attend") as sleeper:
            os.kill(sleeper.pid, signal.SIGSTOP)
            pool = os.urandom(16)
            answer = second.side.offer(pool, second.pool_fd, 64 * 24_576)
            assert isinstance(answer, side.PoolAccepted)
            seq = second.wire.submit(registration(second, pool))
            assert wait_until(lambda: stats(first)["arena_quarantined_bytes"] > 0)

            def has_unmapped() -> bool:  # the first engine does at once; the stopped one cannot
                first.pump()
                return len(first.extents) < num_mapped

            assert wait_until(has_unmapped)
            with pytest.raises(TimeoutError):
                second.wire.reply(seq, 0.3)
            assert stats(first)["arena_used_bytes"] <= 8 << 20
            sleeper.kill()
            reply = expect(second.wire.reply(seq), RegisterKvCacheReply)
            second.session = reply.session
            assert stats(first)["arena_quarantined_bytes"] == 0
            while len(second.extents) < reply.extents:
                second.take_side_packet()
            fill(second, 2)
            keys = make_keys(40, 32)
            assert second.save(keys, list(range(32))) == 32
            assert np.array_equal(read_all(second, keys), second.pages[:32])
        used = sum(path.stat().st_size for path in server.arena_dir.glob("*.extent"))
        assert used <= 8 << 20

"""Quotas of a real server: from its settings, over a restart, and under a flood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from protocol.messages import (
    DeleteSalt,
    DeleteSaltReply,
    Quotas,
    QuotasReply,
    Store,
    StoreReply,
)
from protocol.quotas import QuotaChange, QuotaRow, TenantKind
from server import asking
from tests.server.heirs import CHUNKS, Kept, connect, launch, let_go
from tests.wire.client import Engine, make_keys
from tests.wire.process import ROOT, ServerProcess, wait_until

SALT, OTHER = b"\x5a" * 16, b"\x0f" * 16


def rows(engine: Engine, change: QuotaChange | None = None) -> dict[bytes, QuotaRow]:
    reply = engine.wire.call(Quotas(change=change), QuotasReply)
    return {row.tenant: row for row in reply.quotas}


def save_as(engine: Engine, tenant: bytes, seed: int) -> int:
    """Saves a prompt of one tenant."""
    body = Store(
        session=engine.session,
        store=1_000_000 + seed,
        request=1,
        shard=0,
        start=0,
        parent=b"",
        keys=b"".join(make_keys(seed, CHUNKS)),
        pages=b"".join(number.to_bytes(4, "little") for number in range(CHUNKS)),
        tenant=tenant,
    )
    stored = engine.wire.call(body, StoreReply)
    return stored.held + (
        engine.commit(body.store, stored.copied).published if stored.copied else 0
    )


def test_quotas_are_kept_with_the_arena_and_chunks_are_still_counted(
    short_dir: Path, shm_dir: Path
) -> None:
    arena, kept = shm_dir / "a", Kept()
    floor = QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=8 << 20)
    with launch(short_dir, arena) as server, connect(server, kept.namespace) as engine:
        assert "quotas" in engine.hello.capabilities
        assert "tenants" in engine.hello.capabilities
        rows(engine, floor)
        assert save_as(engine, SALT, 1) == CHUNKS
        assert save_as(engine, OTHER, 2) == CHUNKS
        before = rows(engine)
        assert before[SALT].held_bytes == CHUNKS * engine.page_bytes
        let_go(engine)
        server.kill()
    settings = f"salt/{OTHER.hex()}=1M:2G"
    with (
        launch(short_dir, arena, "--quota", settings) as server,
        connect(server, kept.namespace) as engine,
    ):
        after = rows(engine)
    assert after[SALT] == before[SALT]
    assert after[OTHER].floor_bytes == 1 << 20
    assert after[OTHER].limit_bytes == 2 << 30
    assert after[OTHER].held_bytes == before[SALT].held_bytes


def test_quotas_outlive_an_arena_that_holds_nothing(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    arena, tier = shm_dir / "a", ("--l2", f"disk:{tmp_path}/l2?size=16M")
    floor = QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=8 << 20)
    below = QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=1 << 20, tier="disk")
    with launch(short_dir, arena, *tier) as server:
        with connect(server) as engine:
            rows(engine, floor)
            rows(engine, below)
            rows(engine, msgspec.structs.replace(below, tenant=OTHER))
            assert save_as(engine, SALT, 1) == CHUNKS
            deleted = engine.wire.call(DeleteSalt(tenant=SALT), DeleteSaltReply)
            assert deleted.chunks == CHUNKS
        let_go(engine)
        assert server.terminate() == 0
        assert "quotas_kept" in server.log()
    assert {path.name for path in arena.iterdir()} <= {"quotas", "owed"}
    with launch(short_dir, arena) as server:  # without the tier: both of it are lost, in one line
        (line,) = (line for line in server.log().splitlines() if "quota_lost" in line)
        assert line.count("in disk: ") == 2
        assert server.terminate() == 0
    more = ("--arena-at-exit", "remove")
    with launch(short_dir, arena, *tier, *more) as server:
        with connect(server) as engine:
            reply = engine.wire.call(Quotas(), QuotasReply)
            kept = [(row.tier, row.floor_bytes) for row in reply.quotas]
        let_go(engine)
        assert kept == [("", 8 << 20), ("disk", 1 << 20), ("disk", 1 << 20)]
        assert "quotas_adopted: 3 " in server.log()
        assert server.terminate() == 0
        assert "quotas_removed" in server.log()
    assert not (arena / "quotas").exists()


def test_a_flood_of_ten_arenas_leaves_a_salt_its_floor(short_dir: Path, shm_dir: Path) -> None:
    settings = f"salt/{SALT.hex()}=1M"
    sizes = ("--l1-size", "4M", "--extent-size", "512K", "--quota", settings)
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as server, connect(server) as engine:
        assert save_as(engine, SALT, 1) == CHUNKS
        num_bytes = CHUNKS * engine.page_bytes
        assert num_bytes <= 1 << 20
        for seed in range(2, 2 + 10 * (4 << 20) // num_bytes):
            assert save_as(engine, OTHER if seed % 2 else b"", seed) == CHUNKS
        assert engine.lookup(make_keys(1, CHUNKS)).ready == CHUNKS
        assert rows(engine)[SALT].held_bytes == num_bytes


def on_disk(engine: Engine, tenant: bytes) -> int:
    """Values of a tenant that the disk has."""
    body = DeleteSalt(tenant=tenant, look=True)
    return engine.wire.call(body, DeleteSaltReply).tier_values["disk"]


@pytest.mark.parametrize("layout", ["slab", "files"])
def test_a_flood_of_the_disk_leaves_a_salt_its_floor_there_and_after_a_kill(
    short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str
) -> None:
    arena, kept = shm_dir / "a", Kept()
    url = f"disk:{tmp_path}/l2?size=16M&layout={layout}"
    tier = ("--l2", url, "--quota", f"salt/{SALT.hex()}=2M@disk")
    with launch(short_dir, arena, *tier) as server, connect(server, kept.namespace) as engine:
        assert save_as(engine, SALT, 1) == CHUNKS
        assert wait_until(lambda: on_disk(engine, SALT) == CHUNKS, 20.0, 0.05)
        num_bytes = CHUNKS * engine.page_bytes
        for seed in range(2, 2 + (20 << 20) // num_bytes):
            assert save_as(engine, OTHER, seed) == CHUNKS
        stats = {}

        def is_written() -> bool:
            stats.update(asking.stats(server.side_path, 10.0))
            return stats["tier_disk_puts_waiting"] + stats["tier_disk_jobs"] == 0

        assert wait_until(is_written, 30.0, 0.05)
        assert stats["tier_disk_put_bytes"] > 18 << 20, "more than the disk has room for"
        assert on_disk(engine, SALT) == CHUNKS
        let_go(engine)
        server.kill()
    with launch(short_dir, arena, *tier) as server, connect(server, kept.namespace) as engine:
        assert wait_until(
            lambda: asking.stats(server.side_path, 10.0)["tier_disk_up"] == 1, 20.0, 0.05
        )
        assert on_disk(engine, SALT) == CHUNKS
        (row,) = rows(engine).values()
        assert (row.tier, row.floor_bytes) == ("disk", 2 << 20)


def test_floors_that_do_not_fit_end_the_start_with_one_line(short_dir: Path, shm_dir: Path) -> None:
    settings = f"salt/{SALT.hex()}=65M"
    command = [sys.executable, "-m", "server", "launch", "--endpoint", f"ipc://{short_dir}/s"]
    command += ["--arena-dir", str(shm_dir / "a"), "--l1-size", "64M", "--quota", settings]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert "quota: L1 has 64 MiB, of which" in ended.stderr

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from server.bench import sizing
from server.bench.sizing import GIB, MIB, choose

SMALLEST_BYTES = 1024 * MIB


@given(available=st.integers(0, 64 * GIB), quick=st.booleans())
def test_a_run_fits_or_is_refused(available: int, quick: bool) -> None:
    if available < SMALLEST_BYTES:
        with pytest.raises(ConfigError, match=f"needs {SMALLEST_BYTES // MIB} MiB"):
            choose(available, quick)
        return
    sizes = choose(available, quick)
    assert sizes.needed_bytes <= available
    assert sizes.start_arena_bytes <= max(available // 2, sizes.arena_bytes)
    assert sizes.rounds >= 9
    # A round fits without evictions, extents' records and rounding left out.
    assert sizes.requests_per_round <= sizes.fill_requests
    assert 2 * sizes.pool_bytes <= sizes.arena_bytes
    assert sizes.fill_requests >= 1


def test_a_large_machine_gets_the_full_arena() -> None:
    sizes = choose(24 * GIB, quick=False)
    assert (sizes.arena_bytes, sizes.start_arena_bytes) == (GIB, GIB)
    assert sizes.pool_pages == 128
    assert choose(24 * GIB, quick=True).starts < sizes.starts


def test_the_cgroup_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    (tmp_path / "memory.current").write_text("73741824\n")
    assert sizing._cgroup_free(tmp_path) == [1_000_000_000]
    (tmp_path / "memory.max").write_text("max\n")
    assert sizing._cgroup_free(tmp_path) == []


def test_old_cgroups_count_too(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("1200\n")
    assert sizing._cgroup_free(tmp_path) == [0]


def test_available_is_the_least_of_all(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:      64 kB\n")
    assert sizing.available_bytes(tmp_path, meminfo) == 64 * 1024
    meminfo.write_text("MemTotal: 9 kB\n")
    with pytest.raises(ConfigError, match="MemAvailable"):
        sizing.available_bytes(tmp_path, meminfo)


def test_this_machine_has_some_memory() -> None:
    assert sizing.available_bytes() > 16 * MIB

"""The arena's size against each limit, and what a predecessor's extents take of it (B37)."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server import fitting
from server.config import GIB, MIB, ServerConfig, read


def config(root: Path, **options: str) -> ServerConfig:
    named = {key.replace("_", "-"): value for key, value in options.items()}
    return read({"endpoint": "ipc:///a/b", "cgroup-root": str(root), **named}, {})


def group(root: Path, limit_bytes: int) -> Path:
    (root / "memory.max").write_text(f"{limit_bytes}\n")
    (root / "memory.current").write_text("0\n")
    return root


def test_b37_a_derived_size_is_half_of_the_tightest(tmp_path: Path) -> None:
    assert fitting.fit_arena(config(group(tmp_path, 64 * MIB)), 10 * GIB) == 32 * MIB
    assert fitting.fit_arena(config(group(tmp_path, 64 * MIB)), 20 * MIB) == 18 * MIB


@pytest.mark.parametrize(
    ("limit_bytes", "folder_bytes", "words"),
    [(64 * MIB, GIB, "control group"), (GIB, 64 * MIB, "file system")],
)
def test_b37_a_set_size_that_does_not_fit_names_the_tightest(
    tmp_path: Path, limit_bytes: int, folder_bytes: int, words: str
) -> None:
    wanted = config(group(tmp_path, limit_bytes), l1_size="128M")
    with pytest.raises(ConfigError, match=words) as caught:
        fitting.fit_arena(wanted, folder_bytes)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.detail["free_bytes"] == 64 * MIB


def test_what_is_held_already_is_no_obstacle_to_itself(tmp_path: Path) -> None:
    wanted = config(group(tmp_path, 64 * MIB), l1_size="128M")
    assert fitting.fit_arena(wanted, 64 * MIB, held_bytes=64 * MIB) == 128 * MIB
    with pytest.raises(ConfigError, match="control group"):  # files on a disk free no memory
        fitting.fit_arena(wanted, 64 * MIB, held_bytes=64 * MIB, is_in_memory=False)


def test_b37_too_little_for_any_arena_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="l1-size=1 MiB does not fit"):
        fitting.fit_arena(config(group(tmp_path, 0)), GIB)


def test_b37_files_may_be_as_long_as_the_limit_says() -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    fitting.check_file_limit(1 << 40)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, old[1]))
        fitting.check_file_limit(MIB)
        with pytest.raises(ConfigError, match="RLIMIT_FSIZE") as caught:
            fitting.check_file_limit(MIB + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert caught.value.detail["key"] == "extent-size"


def test_b37_memory_that_tiers_take_is_none_of_the_arenas(tmp_path: Path) -> None:
    pool = "mooncake://m:1?segment=40M&local_buffer=8M"
    limited = group(tmp_path, 112 * MIB)
    assert fitting.fit_arena(config(limited, l2=pool), 10 * GIB) == 32 * MIB
    assert fitting.memory_of(config(limited, l2=f"{pool} disk:/x?size=1G").tiers) == 48 * MIB
    with pytest.raises(ConfigError, match="48 MiB for porters of lower tiers leaves 64 MiB"):
        fitting.fit_arena(config(limited, l1_size="65M", l2=pool), 10 * GIB)
    with pytest.raises(ConfigError, match="leaves 0 bytes"):
        fitting.fit_arena(config(limited, l2="mooncake://m:1?segment=1G"), 10 * GIB)


def test_b37_a_tier_is_no_larger_than_its_disk(tmp_path: Path) -> None:
    whole = os.statvfs(tmp_path)
    size_bytes = whole.f_blocks * whole.f_frsize
    place = f"disk:{tmp_path}/not/yet?size="
    fitting.check_tiers(config(tmp_path, l2=f"{place}{size_bytes} s3://bucket").tiers)
    with pytest.raises(ConfigError, match=rf"disk: size=.* does not fit: .* of {tmp_path} has"):
        fitting.check_tiers(config(tmp_path, l2=f"{place}{size_bytes + 1}").tiers)
    fitting.check_tiers(())

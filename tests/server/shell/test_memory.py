"""Limits of machine and control groups, v1 and v2 (B37)."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.shell import memory

GIB = 1 << 30


def write(folder: Path, **values: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("_DOT_", ".")).write_text(value + "\n")


def test_the_machine_says_what_is_available() -> None:
    room = memory.machine_room()
    assert 0 < room.free_bytes < 1 << 50


def test_a_file_that_does_not_say_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 12 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        memory.machine_room(str(tmp_path / "meminfo"))


def test_b37_v2_takes_the_tightest_of_all_ancestors(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", memory_DOT_max="max", memory_DOT_current=str(GIB))
    write(
        tmp_path / "a",
        memory_DOT_max=str(8 * GIB),
        memory_DOT_current=str(3 * GIB),
        memory_DOT_stat=f"anon 5\ninactive_file {GIB}",
    )
    membership = tmp_path / "membership"
    membership.write_text("0::/a/b\n")
    room = memory.cgroup_room(str(tmp_path), str(membership))
    assert room is not None
    assert room.free_bytes == 6 * GIB
    assert "a/memory.max" in room.name


def test_b37_v1_reads_its_own_names(tmp_path: Path) -> None:
    write(
        tmp_path / "memory" / "pod",
        memory_DOT_limit_in_bytes=str(4 * GIB),
        memory_DOT_usage_in_bytes=str(GIB),
        memory_DOT_stat=f"total_inactive_file {GIB // 2}",
    )
    write(tmp_path / "memory", memory_DOT_limit_in_bytes=str((1 << 63) - 4096))
    membership = tmp_path / "membership"
    membership.write_text("12:cpu,memory:/pod\n3:pids:/pod\n")
    room = memory.cgroup_room(str(tmp_path), str(membership))
    assert room is not None
    assert room.free_bytes == 4 * GIB - GIB // 2


def test_a_container_that_sees_only_the_root_is_understood(tmp_path: Path) -> None:
    write(tmp_path, memory_DOT_max=str(GIB), memory_DOT_current="0")
    membership = tmp_path / "membership"
    membership.write_text("0::/kubepods/burstable/pod7\n")
    room = memory.cgroup_room(str(tmp_path), str(membership))
    assert room is not None
    assert room.free_bytes == GIB


def test_without_limits_there_is_no_bound(tmp_path: Path) -> None:
    write(tmp_path, memory_DOT_max="max")
    assert memory.cgroup_room(str(tmp_path), str(tmp_path / "absent")) is None


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, memory_DOT_max=str(GIB), memory_DOT_current=str(2 * GIB))
    room = memory.cgroup_room(str(tmp_path), str(tmp_path / "absent"))
    assert room is not None
    assert room.free_bytes == 0

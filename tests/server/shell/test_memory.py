"""Limits of machine and control groups, v1 and v2 (B37)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.shell import memory
from tests.wire.process import ROOT

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


def test_b37_v2_counts_the_limit_from_which_the_kernel_slows_down(tmp_path: Path) -> None:
    write(tmp_path, memory_DOT_max=str(8 * GIB), memory_DOT_current=str(GIB))
    write(tmp_path, memory_DOT_high=str(4 * GIB))
    room = memory.cgroup_room(str(tmp_path), str(tmp_path / "absent"))
    assert room is not None
    assert room.free_bytes == 3 * GIB
    assert "memory.high" in room.name


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


@pytest.mark.parametrize(
    ("limit", "room", "words"),
    [
        ("RLIMIT_AS", "process_room", "address space"),
        ("RLIMIT_FSIZE", "file_room", "file sizes"),
    ],
)
def test_b37_limits_of_the_process_count(limit: str, room: str, words: str) -> None:
    script = (
        "import resource\n"
        "from server.shell import memory\n"
        f"print(memory.{room}())\n"
        f"resource.setrlimit(resource.{limit}, ({8 * GIB}, {8 * GIB}))\n"
        f"found = memory.{room}()\n"
        "print(found.free_bytes, found.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after = done.stdout.splitlines()
    assert before == "None"
    free_bytes, name = after.split(" ", 1)
    assert 7 * GIB < int(free_bytes) <= 8 * GIB
    assert words in name
    assert limit in name


@pytest.mark.parametrize(
    ("kind", "is_memory"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("overlay", False)]
)
def test_the_mount_says_whether_files_are_memory(
    tmp_path: Path, kind: str, is_memory: bool
) -> None:
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    (tmp_path / "mounts").write_text(
        "22 1 0:5 / /proc rw shared:1 - proc proc rw\n"
        f"30 1 {number} / /dev/shm rw,nosuid shared:4 - {kind} somewhere rw\n"
    )
    assert memory.is_memory(str(tmp_path), str(tmp_path / "mounts")) is is_memory
    assert not memory.is_memory(str(tmp_path), str(tmp_path / "missing"))
    (tmp_path / "mounts").write_text("")
    assert not memory.is_memory(str(tmp_path), str(tmp_path / "mounts"))

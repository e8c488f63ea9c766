"""What doctor says of the machine: real values here, and what it says where they are too small."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from server.cli import hostcheck
from server.cli.findings import Level
from server.process import MIN_OPEN_FILES

UNLIMITED = resource.RLIM_INFINITY


def test_this_machine_has_what_the_tests_need() -> None:
    found = {finding.about: finding for finding in hostcheck.findings({})}
    assert set(found) >= {"python", "kernel", "open files", "shared memory", "locked memory"}
    assert found["kernel"].level is Level.OK
    assert os.uname().release in found["kernel"].text
    assert f"uid {os.geteuid()}" in found["user"].text
    assert os.readlink("/proc/self/ns/pid") in found["namespaces"].text


@pytest.mark.parametrize(
    ("hard", "level"),
    [
        (MIN_OPEN_FILES - 1, Level.ERROR),
        (MIN_OPEN_FILES, Level.OK),
        (UNLIMITED, Level.OK),
    ],
)
def test_open_files_are_measured_against_the_servers_own_bound(hard: int, level: Level) -> None:
    found = hostcheck.open_files(hard)
    assert found.level is level
    assert ("LimitNOFILE" in found.advice) == (level is Level.ERROR)


def test_the_arena_is_looked_for_where_launch_would_put_it(tmp_path: Path) -> None:
    assert hostcheck.arena_parent({}) == Path("/dev/shm")
    there = {"KVKEEP_ARENA_DIR": str(tmp_path / "not" / "yet")}
    assert hostcheck.arena_parent(there) == tmp_path
    found = hostcheck.shared_memory(tmp_path)
    assert str(tmp_path) in found.text
    assert found.level in (Level.OK, Level.WARNING)


def test_little_room_is_a_warning_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostcheck, "SMALL_SHM_BYTES", 1 << 62)
    found = hostcheck.shared_memory(tmp_path)
    assert found.level is Level.WARNING
    assert "--shm-size" in found.advice
    assert hostcheck.shared_memory(tmp_path / "none").level is Level.ERROR


def test_pages_of_the_arenas_file_system_are_told(tmp_path: Path) -> None:
    assert hostcheck.huge_pages(Path("/dev/shm")).level is Level.OK
    assert hostcheck.huge_pages(tmp_path / "none").level is Level.NOTE
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    line = f"26 1 {os.major(device)}:{os.minor(device)} / /x rw - tmpfs tmpfs rw,size=1k"
    for options, said in ((",huge=within_size", "mounted with huge=within_size"), ("", "small")):
        mounts.write_text(f"25 1 0:999 / /y rw - tmpfs tmpfs rw,huge=always\n{line}{options}\n")
        assert said in hostcheck.huge_pages(tmp_path, str(mounts)).text


def test_a_limit_on_locked_memory_is_no_fault_by_itself() -> None:
    limited = hostcheck.locked_memory((8 << 20, UNLIMITED))
    assert limited.level is Level.NOTE
    assert "soft limit 8 MiB, hard limit unlimited" in limited.text
    assert hostcheck.locked_memory((UNLIMITED, UNLIMITED)).level is Level.OK


def test_a_container_is_told_from_the_machine_itself() -> None:
    spaces = {"/proc/self/ns/pid": "pid:[4026531836]", "/proc/self/ns/ipc": "ipc:[4026531839]"}
    [own] = hostcheck.namespaces(lambda path: spaces[path])
    assert own.level is Level.OK
    spaces["/proc/self/ns/pid"] = "pid:[4026532999]"
    [contained] = hostcheck.namespaces(lambda path: spaces[path])
    assert contained.level is Level.NOTE
    assert "pid:[4026532999]" in contained.text
    assert "--pid=host" in contained.advice

    def refuse(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    [unknown] = hostcheck.namespaces(refuse)
    assert unknown.level is Level.WARNING

"""System calls: short ones are continued, errors have one meaning each."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.tiers.disk.files import (
    BLOCK_BYTES,
    Files,
    HeaderBlocks,
    blocks,
    open_direct,
    read_all,
    shortage,
    status_of,
    write_all,
)
from server.tiers.interface import HEADER_BYTES
from tests.server.tiers.disk.rig import FaultyFiles, filled


def test_whole_blocks() -> None:
    assert [blocks(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOSPC, Status.NO_ROOM),
        (errno.EDQUOT, Status.NO_ROOM),
        (errno.ENOENT, Status.ABSENT),
        (errno.EIO, Status.ERROR),
        (errno.EROFS, Status.ERROR),
        (errno.ESTALE, Status.ERROR),
    ],
)
def test_what_an_error_means(number: int, status: Status) -> None:
    assert status_of(OSError(number, "x")) is status


@pytest.mark.parametrize("times", [1, 2, 100])
def test_short_calls_are_continued(tmp_path: Path, times: int) -> None:
    files = FaultyFiles()
    fd, _ = open_direct(files, str(tmp_path / "x"), os.O_RDWR | os.O_CREAT)
    one, other = filled(1), filled(2)
    buffers = [one.room[:BLOCK_BYTES], one.room[BLOCK_BYTES:], other.room]
    files.shorten("pwritev", times=times)
    write_all(files, fd, buffers, BLOCK_BYTES)
    into, into_other = filled(3).room, filled(4).room
    files.shorten("preadv", times=times)
    read = read_all(files, fd, [into[:BLOCK_BYTES], into[BLOCK_BYTES:], into_other], BLOCK_BYTES)
    assert read == len(one.room) + len(other.room)
    assert (into, into_other) == (one.room, other.room)
    assert read_all(files, fd, [into_other], BLOCK_BYTES + len(one.room) + 4096) < len(into_other)
    files.close(fd)


def test_a_write_that_goes_nowhere_is_an_error(tmp_path: Path) -> None:
    class Nowhere(Files):
        def pwritev(self, fd: int, buffers: object, offset: int) -> int:
            return 0

    with pytest.raises(OSError, match="nothing was written"):
        write_all(Nowhere(), -1, [memoryview(b"x")], 0)


def test_o_direct_if_it_is_there(tmp_path: Path) -> None:
    files = FaultyFiles()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    files.fail("open_direct", errno.EINVAL)
    fd, is_direct = open_direct(files, str(tmp_path / "a"), flags)
    assert not is_direct
    files.close(fd)
    files.fail("open_direct", errno.EACCES)
    with pytest.raises(PermissionError):
        open_direct(files, str(tmp_path / "b"), flags)


def test_a_folder_that_cannot_be_synced_is_an_error_and_one_that_never_can_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Files().sync_folder(str(tmp_path))
    number = errno.EINVAL

    def fsync(fd: int) -> None:
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path))
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    Files().sync_folder(str(tmp_path))
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        Files().sync_folder(str(tmp_path))


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="symbolic link"):
        Files().open(str(tmp_path / "link"), os.O_RDWR)


def test_a_folder_that_somebody_moves_away_meanwhile_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    is_dir, moved = os.path.isdir, list[Path]()

    def away(asked: str) -> bool:
        if not moved:
            moved.append(path.rename(tmp_path / "cleared"))
        return is_dir(asked)

    monkeypatch.setattr("server.tiers.disk.files.os.path.isdir", away)
    assert Files().make_folder(str(path))
    assert path.is_dir()
    assert not Files().make_folder(str(path))


def test_what_is_there_and_is_no_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is no folder"):
        Files().make_folder(str(tmp_path / "file"))


def test_each_thread_has_a_header_block_and_nothing_of_others_in_it() -> None:
    headers, blocks_seen = HeaderBlocks(), []
    headers.block[:] = b"\x07" * BLOCK_BYTES
    block = headers.filled(memoryview(b"\x01" * HEADER_BYTES))
    assert bytes(block) == b"\x01" * HEADER_BYTES + bytes(BLOCK_BYTES - HEADER_BYTES)
    headers.filled(memoryview(b"\x01" * HEADER_BYTES), b"name")
    assert headers.names(b"name")
    assert not headers.names(b"nam3")
    thread = threading.Thread(target=lambda: blocks_seen.append(headers.block))
    thread.start()
    thread.join()
    assert bytes(blocks_seen[0]) == bytes(BLOCK_BYTES)


@pytest.mark.parametrize(
    ("whole_bytes", "is_short", "told"),
    [
        (100 << 20, False, ""),
        (8 << 20, False, "/l2: size=64 MiB, and its file system has 8 MiB in all"),
        (100 << 20, True, "/l2: its file system is full before size=64 MiB is reached: "),
        (8 << 20, True, "/l2: its file system, 8 MiB in all, is full before size=64 MiB is reach"),
        (0, False, ""),
    ],
)
def test_a_size_that_the_file_system_does_not_have(
    whole_bytes: int, is_short: bool, told: str
) -> None:
    files = FaultyFiles()
    files.small = (whole_bytes, 0)
    said = shortage(files, "/l2", 64 << 20, is_short)
    assert said.startswith(told)
    assert bool(said) == bool(told)

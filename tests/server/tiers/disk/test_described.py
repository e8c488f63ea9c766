"""What namespaces a folder has: kept whole, few, and read with suspicion."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from server.tiers.disk.described import FOLDER, MAX_TEXT_BYTES, Described
from server.tiers.disk.files import Files
from tests.server.tiers.disk.rig import FINGERPRINT, OTHER


def made(tmp_path: Path, max_bytes: int = 1 << 17, files: Files | None = None) -> Described:
    return Described(files or Files(), str(tmp_path), max_bytes)


def test_what_is_kept_outlives_the_porter_and_is_forgotten(tmp_path: Path) -> None:
    here = made(tmp_path)
    assert here.all() == []
    here.keep(FINGERPRINT, b"one")
    here.keep(OTHER, b"two")
    there = made(tmp_path)
    assert set(there.all()) == {FINGERPRINT, OTHER}
    assert (there.text(FINGERPRINT), there.text(OTHER)) == (b"one", b"two")
    there.forget(FINGERPRINT)
    there.forget(FINGERPRINT)
    assert (here.all(), here.text(FINGERPRINT)) == ([OTHER], b"")
    mode = (tmp_path / FOLDER / OTHER.hex()).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_those_kept_longest_ago_make_way(tmp_path: Path) -> None:
    here = made(tmp_path, max_bytes=4 * 4096)
    names = [bytes([number]) * 16 for number in range(6)]
    for number, name in enumerate(names):
        here.keep(name, b"x")
        os.utime(tmp_path / FOLDER / name.hex(), ns=(number, number))
    here.keep(names[2], b"x")
    assert here.all()[0] == names[2]
    assert set(here.all()) == set(names[2:])


def test_what_is_too_long_or_no_file_of_ours_is_none(tmp_path: Path) -> None:
    here = made(tmp_path)
    here.keep(FINGERPRINT, b"x" * (MAX_TEXT_BYTES + 1))
    assert here.all() == []
    here.keep(FINGERPRINT, b"x")
    path = tmp_path / FOLDER / FINGERPRINT.hex()
    path.write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    assert here.text(FINGERPRINT) == b""
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError):
        here.text(FINGERPRINT)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(OSError):
        here.text(FINGERPRINT)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    made(tmp_path).keep(FINGERPRINT, b"old")

    class Full(Files):
        def pwritev(self, fd: int, buffers: object, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError):
        made(tmp_path, files=Full()).keep(FINGERPRINT, b"new")
    assert made(tmp_path).text(FINGERPRINT) == b"old"
    assert os.listdir(tmp_path / FOLDER) == [FINGERPRINT.hex()]


def test_what_was_kept_is_written_again_into_a_folder_that_is_made_anew(tmp_path: Path) -> None:
    here = made(tmp_path, max_bytes=3 * 4096)
    names = [bytes([number]) * 16 for number in range(5)]
    for name in names:
        here.keep(name, b"x")
    here.forget(names[3])
    here.remember(OTHER, b"y")
    shutil.rmtree(tmp_path / FOLDER)
    here.restore()
    assert set(here.all()) == {names[2], names[4], OTHER}, "the latest, as many as have room"
    assert here.text(OTHER) == b"y"

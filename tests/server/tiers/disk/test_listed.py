"""What is looked up in a shared folder, whoever wrote it, and what is no value is passed over."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from server.tiers.disk import listed as module
from server.tiers.disk.files import BLOCK_BYTES
from server.tiers.disk.listed import Listed
from server.tiers.disk.marks import Marks, tag_of
from server.tiers.interface import HEADER_BYTES, Name
from tests.server.tiers.disk.rig import FINGERPRINT, OTHER, FaultyFiles, name_of

A, B = b"a" * 16, b"b" * 16


def write(root: Path, name: Name, salt: bytes = b"", used_s: int = 1) -> Path:
    key = name.key.hex()
    path = root / name.fingerprint.hex() / key[:2] / f"{key}-{name.shard}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(HEADER_BYTES) + salt.ljust(BLOCK_BYTES - HEADER_BYTES + tag_of(salt)))
    os.utime(path, (used_s, used_s))
    return path


def listed(root: Path) -> tuple[Listed, FaultyFiles]:
    files = FaultyFiles()
    return Listed(files, str(root), Marks(files)), files


def test_what_was_used_last_comes_first(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, name_of(number), used_s=10 + number * 3 % 5)
    write(tmp_path, name_of(9, shard=1), used_s=99)
    folder, _ = listed(tmp_path)
    keys = [name_of(number).key for number in (3, 1, 4, 2, 0)]
    assert folder.latest(FINGERPRINT, 0, 10) == keys
    assert folder.latest(FINGERPRINT, 0, 2) == keys[:2]
    assert folder.latest(FINGERPRINT, 1, 2) == [name_of(9).key]
    assert folder.latest(OTHER, 0, 2) == []


def test_values_of_a_salt_are_found_in_every_namespace(tmp_path: Path) -> None:
    mine = [name_of(1), name_of(2, OTHER), name_of(2, OTHER, shard=7)]
    for name in mine:
        write(tmp_path, name, A)
    write(tmp_path, name_of(3), B)
    write(tmp_path, name_of(4))
    write(tmp_path, name_of(5), A).rename(tmp_path / "notes")
    write(tmp_path, name_of(6), A).rename(tmp_path / FINGERPRINT.hex() / "06" / ".tmp-x")
    folder, files = listed(tmp_path)
    assert sorted(folder.of_salt(A, 10)) == sorted(mine)
    assert files.calls["open"] == 3, "nothing else was read"
    assert len(folder.of_salt(A, 2)) == 2
    assert folder.namespaces() == {FINGERPRINT, OTHER}


def test_what_is_not_there_has_nothing(tmp_path: Path) -> None:
    folder, _ = listed(tmp_path / "l2")
    assert folder.of_salt(A, 10) == []
    assert folder.namespaces() == set()
    assert folder.latest(FINGERPRINT, 0, 1) == []


def test_what_cannot_be_looked_at_is_not_told_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, name_of(1), A)
    folder, files = listed(tmp_path)
    files.fail("names", errno.EACCES, skip=1)
    with pytest.raises(PermissionError):
        folder.of_salt(A, 10)
    files.heal()
    files.fail("preadv")
    with pytest.raises(OSError, match="Input/output"):
        folder.of_salt(A, 10)
    files.heal()
    monkeypatch.setattr(module, "_FIND_S", -1.0)
    with pytest.raises(OSError, match="too many files"):
        folder.of_salt(A, 10)


class Slow(FaultyFiles):
    def stat(self, path: str) -> os.stat_result:
        time.sleep(0.01)
        return super().stat(path)


def test_one_folder_of_many_files_is_not_looked_at_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        write(tmp_path, name_of(number * 251))
    assert len(list((tmp_path / FINGERPRINT.hex()).iterdir())) == 1
    monkeypatch.setattr(module, "_FIND_S", 0.1)
    files = Slow()
    with pytest.raises(OSError, match="too many files"):
        Listed(files, str(tmp_path), Marks(files)).of_salt(A, 10)

"""A file of a shared folder tells its salt, and its length tells whether it must be read for it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from server.tiers.disk import marks as module
from server.tiers.disk.files import BLOCK_BYTES
from server.tiers.disk.marks import Marks, tag_in, tag_of
from server.tiers.interface import HEADER_BYTES
from tests.server.tiers.disk.rig import FaultyFiles

A, B = b"a" * 16, b"b" * 16


def written(folder: Path, number: int, salt: bytes, tag: int | None = None) -> tuple[str, int]:
    tail = tag_of(salt) if tag is None else tag
    path = folder / str(number)
    path.write_bytes(b"h" * HEADER_BYTES + salt.ljust(3 * BLOCK_BYTES - HEADER_BYTES + tail, b"\0"))
    return str(path), path.stat().st_size


def test_only_what_has_a_salt_is_longer_than_whole_blocks() -> None:
    assert tag_of(b"") == 0
    tags = {tag_of(number.to_bytes(8, "big") * 2) for number in range(10_000)}
    assert tags == set(range(1, BLOCK_BYTES))
    assert tag_in(3 * BLOCK_BYTES) == 0
    assert tag_in(3 * BLOCK_BYTES + tag_of(A)) == tag_of(A)


def test_files_are_read_only_if_their_length_says_so_and_once(tmp_path: Path) -> None:
    files = FaultyFiles()
    marks = Marks(files)
    ours, others, none = (written(tmp_path, n, salt) for n, salt in enumerate((A, B, b"")))
    assert [marks.salt(*one) for one in (ours, others, none)] == [b"", b"", b""]
    marks.look_for([A])
    assert files.calls.get("open", 0) == 0
    assert [marks.salt(*one) for one in (ours, others, none)] == [A, b"", b""]
    assert files.calls["open"] == 1
    assert marks.salt(*ours) == A
    assert files.calls["open"] == 1
    assert marks.read(*others) == B, "by whoever looks for that one"


def test_a_walk_forgets_what_it_did_not_see(tmp_path: Path) -> None:
    files = FaultyFiles()
    marks = Marks(files)
    marks.look_for([A])
    first, second = written(tmp_path, 1, A), written(tmp_path, 2, A)
    for seen in ((first, second), (second,), (first,)):
        marks.begin()
        assert [marks.salt(*one) for one in seen] == [A] * len(seen)
        marks.end()
    assert files.calls["open"] == 3


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 1)
    files = FaultyFiles()
    marks = Marks(files)
    marks.look_for([A])
    both = [written(tmp_path, n, A) for n in range(2)]
    for _ in range(3):
        assert [marks.salt(*one) for one in both] == [A, A]
    assert files.calls["open"] == 1 + 3


def test_what_fits_no_salt_has_none(tmp_path: Path) -> None:
    marks = Marks(FaultyFiles())
    marks.look_for([A])
    assert marks.salt(*written(tmp_path, 1, bytes(16), tag=tag_of(A))) == b""
    assert marks.salt(*written(tmp_path, 2, B, tag=tag_of(A))) == b""
    short = tmp_path / "short"
    short.write_bytes(bytes(tag_of(A)))
    assert marks.salt(str(short), tag_of(A)) == b""


def test_what_cannot_be_read_raises_and_is_asked_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    marks = Marks(files)
    marks.look_for([A])
    path, length = written(tmp_path, 1, A)
    files.fail("preadv", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        marks.salt(path, length)
    files.heal()
    assert marks.salt(path, length) == A
    with pytest.raises(FileNotFoundError):
        marks.salt(path + "x", length)

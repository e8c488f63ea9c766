"""What a predecessor left: whole extents are opened, everything else goes with a reason."""

from __future__ import annotations

import mmap
import os
import resource
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.extents import HEADER_DTYPE, RECORD_DTYPE, checksums
from protocol.ids import ArenaId, ExtentId
from protocol.namespace import fingerprint
from server.core.adoption import HOLDS_NOTHING, Adoption
from server.shell import adoption, extents, namespacefiles, parties
from server.shell.adoption import MAX_REASONS, Found, NotAdoptableError
from server.shell.parties import Surroundings
from tests.server.shell.geometry import make_geometry
from tests.server.shell.test_namespacefiles import NAMESPACE

ARENA = ArenaId(b"a" * 16)
OUTDATED = ArenaId(b"o" * 16)
HERE = Surroundings.here()


@pytest.fixture
def directory(shm_dir: Path) -> Path:
    for name in (namespacefiles.FOLDER, parties.FOLDER):
        (shm_dir / name).mkdir()
    return shm_dir


def make(directory: Path, extent: int, arena: ArenaId = ARENA) -> Path:
    file = extents.create(str(directory), make_geometry(extent), arena)
    rows = np.zeros(3, dtype=RECORD_DTYPE)
    rows["generation"] = [extent * 10 + n for n in range(3)]
    rows["checksum"] = checksums(rows)
    file.write(np.arange(3, dtype=np.uint32), rows)
    file.close()
    return Path(file.path)


def look(directory: Path) -> Found:
    return adoption.look(str(directory), ARENA, HERE, OUTDATED)


def header(path: Path) -> Any:
    return np.frombuffer(path.read_bytes()[:128], dtype=HEADER_DTYPE).copy()


def rewrite(path: Path, row: Any, sign: bool = True) -> None:
    if sign:
        row["checksum"] = checksums(row)
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.write(row.tobytes())
    path.chmod(0o400)


def test_whole_extents_are_opened_as_they_were(directory: Path) -> None:
    paths = [make(directory, extent) for extent in (1, 2, 7)]
    namespacefiles.keep(str(directory), fingerprint(NAMESPACE), NAMESPACE)
    before = [path.read_bytes() for path in paths]
    found = look(directory)
    heritage = found.heritage()
    assert [one.geometry for one in heritage.extents] == [make_geometry(n) for n in (1, 2, 7)]
    for one in heritage.extents:
        assert one.records["generation"][:3].tolist() == [
            one.geometry.extent * 10 + n for n in range(3)
        ]
        assert not one.records["checksum"][3:].any()
    assert heritage.namespaces == {fingerprint(NAMESPACE): NAMESPACE}
    assert heritage.parties == []
    assert heritage.next_extent == 8
    assert found.held_bytes == sum(path.stat().st_size for path in paths)
    for file in found.files.values():
        file.void(np.array([0], dtype=np.uint32))  # writable, in the file itself
        assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o400
        with pytest.raises(PermissionError):
            mmap.mmap(file.readable.fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    found.close()
    assert [path.read_bytes() == old for path, old in zip(paths, before, strict=True)] == [
        False
    ] * 3
    assert not any(file.writable.is_open() for file in found.files.values())
    assert adoption.summary(look(directory), Adoption(kept=[ExtentId(1)], num_chunks=3)) == (
        "adopted 3 chunks in 1 extents"
    )


def of_version_2(path: Path) -> None:
    row = header(path)
    row["version"] = 2
    rewrite(path, row)


def torn_header(path: Path) -> None:
    row = header(path)
    row["num_slots"] += 1
    rewrite(path, row, sign=False)


def contradicting(path: Path) -> None:
    row = header(path)
    row["num_slots"] += 1
    rewrite(path, row)


def of_another_extent(path: Path) -> None:
    row = header(path)
    row["extent"] = 9
    rewrite(path, row)


def of_another_arena(path: Path) -> None:
    row = header(path)
    row["arena"] = np.void(b"b" * 16)
    rewrite(path, row)


def before_the_last_start(path: Path) -> None:
    row = header(path)
    row["arena"] = np.void(OUTDATED)
    rewrite(path, row)


def of_larger_records(path: Path) -> None:
    row = header(path)
    row["record_bytes"] = 256
    rewrite(path, row)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def longer(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def foreign(path: Path) -> None:
    path.unlink()
    path.write_bytes(os.urandom(5000))


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def link_to_an_extent(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 12345, -1)


SPOILT = [
    (of_version_2, "not an extent file of format version 1"),
    (torn_header, "checksum does not match"),
    (contradicting, "contradicts itself"),
    (of_larger_records, "not of 128 bytes"),
    (of_another_extent, "another extent's"),
    (of_another_arena, "of another arena"),
    (truncated, "not as long as its header says"),
    (longer, "not as long as its header says"),
    (empty, "no extent header"),
    (foreign, "not an extent file of format version 1"),
    (before_the_last_start, "written before the machine's last start"),
    (link, "a symbolic link"),
    (link_to_an_extent, "a symbolic link"),
    (pipe, "not a regular file"),
    (folder, "a folder (left there)"),
    (of_another_user, "belongs to another user"),
]


@pytest.mark.parametrize(("spoil", "why"), SPOILT, ids=[spoil.__name__ for spoil, _ in SPOILT])
def test_what_is_no_whole_extent_goes_and_the_others_stay(
    directory: Path, spoil: Callable[[Path], None], why: str
) -> None:
    make(directory, 1)
    path = make(directory, 2)
    spoil(path)
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotAdoptableError, match=why.partition(" (")[0]):
        adoption.reopen(str(directory), ExtentId(2), ARENA, OUTDATED)
    assert len(os.listdir("/proc/self/fd")) == num_open
    found = look(directory)
    assert list(found.files) == [1]
    [(said, count)] = found.dropped.items()
    assert why in said
    assert count == 1
    assert os.path.lexists(path) == (spoil is folder)
    assert found.next_extent == 3  # its number is not given again
    text = adoption.summary(found, Adoption(kept=[ExtentId(1)]))
    assert f"dropped files: 1 {said}" in text
    assert adoption.has_lost(found, Adoption())
    found.close()


def test_an_unreadable_file_is_dropped(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything, so the refusal is played."""
    path = make(directory, 1)
    real = os.open

    def refuse(name: str, flags: int, mode: int = 0o777) -> int:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    found = look(directory)
    monkeypatch.undo()
    assert found.dropped == Counter({"Permission denied": 1})
    assert not path.exists()


@pytest.mark.parametrize("spare", range(6))  # two extents take six, and a folder is read then
def test_without_descriptors_to_look_nothing_is_judged_and_nothing_lost(
    directory: Path, spare: int
) -> None:
    for extent in (1, 2):
        make(directory, extent)
    namespacefiles.keep(str(directory), fingerprint(NAMESPACE), NAMESPACE)
    before = sorted(directory.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(spare + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
    for fd in taken[1:]:
        os.close(fd)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            look(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(taken[0])
    assert sorted(directory.rglob("*")) == before


def test_names_that_no_server_gives_are_not_believed(directory: Path) -> None:
    one = make(directory, 1)
    one.rename(directory / "000000001.extent")
    make(directory, 2).rename(directory / "4294967295.extent")
    (directory / "1.extent").write_text("not ours")
    (directory / "00000003.extent.bak").write_text("not ours")
    found = look(directory)
    assert found.files == {}
    assert found.dropped == Counter({"not a name that a server gives": 2})
    assert found.next_extent == 2
    left = {path.name for path in directory.iterdir() if path.is_file()}
    assert left == {"1.extent", "00000003.extent.bak"}


def test_holes_are_filled_before_somebody_writes_into_them(directory: Path) -> None:
    path = make(directory, 1)
    size = path.stat().st_size
    kept = path.read_bytes()[:40_960]
    path.unlink()
    path.write_bytes(kept)
    os.truncate(path, size)
    assert path.stat().st_blocks * 512 < size
    found = look(directory)
    assert path.stat().st_blocks * 512 >= size
    assert list(found.files) == [1]
    found.close()


def test_namespaces_without_extents_go(directory: Path) -> None:
    other = msgspec.structs.replace(NAMESPACE, model_id="other")
    for one in (NAMESPACE, other):
        namespacefiles.keep(str(directory), fingerprint(one), one)
    (directory / "namespaces" / ("1" * 32)).write_bytes(b"torn")
    found = look(directory)
    assert len(found.dropped) == 1
    adoption.forget_namespaces(str(directory), found, {fingerprint(other)})
    assert [path.name for path in (directory / "namespaces").iterdir()] == [
        fingerprint(other).hex()
    ]
    assert adoption.summary(Found(), Adoption()) == ""
    many = Counter({f"reason {number:02}": 1 for number in range(MAX_REASONS + 3)})
    text = adoption.summary(Found(dropped=many), Adoption())
    assert text.count("reason") == MAX_REASONS + 1
    assert text.endswith(", 3 for other reasons")
    for reason, is_lost in ((HOLDS_NOTHING, False), ("no room in the arena", True)):
        assert adoption.has_lost(Found(), Adoption(dropped={ExtentId(1): reason})) == is_lost

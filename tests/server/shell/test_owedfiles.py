"""What tiers are still to forget: read by the next server that has the tier, whole or as all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from protocol.ids import Fingerprint
from server.core.effects import KeepOwed, TierId
from server.shell import owedfiles
from server.shell.owedfiles import OwedFile
from server.tierspec import parse_all

NAME, OTHER = Fingerprint(b"n" * 16), Fingerprint(b"o" * 16)
ZERO, ONE = TierId(0), TierId(1)
SPECS = parse_all(["disk:/one?size=1G", "disk:/two?size=1G"])
STORES = [owedfiles.store_of(spec) for spec in SPECS]
KEYS = b"k" * 16 + b"l" * 16


def owed(tier: TierId, name: Fingerprint, keys: bytes = b"") -> KeepOwed:
    return KeepOwed(tier, name, 1, 2, keys)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / owedfiles.FOLDER).mkdir()
    return str(tmp_path)


def test_what_was_kept_is_read_again_until_it_is_dropped(directory: str) -> None:
    owedfiles.keep(directory, STORES[0], owed(ZERO, NAME, KEYS))
    owedfiles.keep(directory, STORES[0], owed(ZERO, OTHER, KEYS))
    owedfiles.keep(directory, STORES[0], owed(ZERO, OTHER))  # anew
    owedfiles.keep(directory, STORES[1], owed(ONE, NAME))
    found = {(one.tier, one.fingerprint): one for one in owedfiles.read(directory, SPECS)}
    assert {name: (one.shards, one.keys) for name, one in found.items()} == {
        (ZERO, NAME): (2, KEYS),
        (ONE, NAME): (2, b""),
        (ZERO, OTHER): (2, b""),
    }
    for store, name in ((STORES[0], NAME), (STORES[0], NAME), (STORES[1], NAME)):
        owedfiles.drop(directory, store, name)
    assert owedfiles.read(directory, SPECS) == [OwedFile(ZERO, OTHER, 2, b"")]


def test_a_store_is_known_by_its_place_whatever_its_number_name_and_policy(directory: str) -> None:
    owedfiles.keep(directory, STORES[1], owed(ONE, NAME))
    moved = parse_all(["disk:/two?size=2G&policy=none&name=cold", "disk:/three?size=1G"])
    assert owedfiles.read(directory, moved) == [OwedFile(ZERO, NAME, 2, b"")]


def test_what_is_for_a_tier_that_this_server_lacks_stays(directory: str) -> None:
    owedfiles.keep(directory, STORES[1], owed(ONE, NAME))
    assert owedfiles.read(directory, SPECS[:1]) == []
    assert owedfiles.read(directory, SPECS) == [OwedFile(ONE, NAME, 2, b"")]


@pytest.mark.parametrize("data", [b"", b"kvowed1\n", b"x" * 12 + KEYS, None, "folder"])
def test_a_file_that_cannot_be_read_stands_for_all_of_the_namespace(
    directory: str, data: bytes | str | None
) -> None:
    owedfiles.keep(directory, STORES[0], owed(ZERO, NAME, KEYS))
    (path,) = (Path(directory) / owedfiles.FOLDER).iterdir()
    whole = path.read_bytes()
    if data == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(whole[:-1] if data is None else data)  # type: ignore[arg-type]
    assert owedfiles.read(directory, SPECS) == [OwedFile(ZERO, NAME, 0, b"")]


def test_other_files_are_not_looked_at(directory: str) -> None:
    folder = Path(directory) / owedfiles.FOLDER
    for name in (f"{NAME.hex()}.{STORES[0]}.new", NAME.hex(), "x"):
        (folder / name).write_bytes(b"")
    assert owedfiles.read(directory, SPECS) == []


def test_a_shortage_ends_the_start_and_leaves_the_file(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owedfiles.keep(directory, STORES[0], owed(ZERO, NAME))

    def short(path: str, max_bytes: int) -> bytes:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(owedfiles, "read_whole", short)
        with pytest.raises(OSError, match="too many"):
            owedfiles.read(directory, SPECS)
    assert owedfiles.read(directory, SPECS) == [OwedFile(ZERO, NAME, 2, b"")]

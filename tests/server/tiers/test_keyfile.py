"""Keys: which one writes, which ones read, and what a file must be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.tiers.interface import Name, TierError
from server.tiers.keyfile import LOOK_EVERY_S, MAX_FILE_BYTES, Keyring, read_keys

SPACE, OTHER = bytes(range(16)), bytes(range(1, 17))
FIRST, SECOND, THIRD = "11" * 32, "22" * 32, "ab" * 32


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_last_one_writes_and_each_reads(tmp_path: Path) -> None:
    keys = read_keys(written(tmp_path, f"# ours\n\n 2025 = {FIRST}\n2026={SECOND.upper()}\n"))
    new = keys.writing(SPACE)
    assert new is not None
    assert (new.name, new.secret) == ("2026", bytes.fromhex(SECOND))
    only = read_keys(written(tmp_path, f"another-name = {FIRST}")).writing(SPACE)
    assert only is not None
    old = keys.reading(OTHER, only.id)
    assert old is not None
    assert old.name == "2025", "a key is known by its secret, not by its name"
    assert keys.reading(SPACE, bytes(8)) is None


def test_a_namespace_may_have_one_of_its_own(tmp_path: Path) -> None:
    lines = f"acme {SPACE.hex()} = {FIRST}\nall = {SECOND}\n"
    keys = read_keys(written(tmp_path, lines))
    own, shared = keys.writing(SPACE), keys.writing(OTHER)
    assert own is not None
    assert shared is not None
    assert (own.name, shared.name) == ("acme", "all")
    assert keys.reading(SPACE, own.id) == own
    assert keys.reading(SPACE, shared.id) == shared, "as it was before it had its own"
    assert keys.reading(OTHER, own.id) is None, "not even when the header names it"
    alone = read_keys(written(tmp_path, f"acme {SPACE.hex()} = {FIRST}"))
    assert alone.writing(OTHER) is None


def test_each_value_has_a_key_of_its_own(tmp_path: Path) -> None:
    keys = read_keys(written(tmp_path, f"a = {FIRST}\nb = {SECOND}"))
    all_keys = [keys.writing(SPACE), read_keys(written(tmp_path, f"a = {FIRST}")).writing(SPACE)]
    names = [Name(SPACE, OTHER, 0), Name(SPACE, OTHER, 1), Name(OTHER, OTHER, 0)]
    names.append(Name(SPACE, SPACE, 0))
    made = {key.of_value(name) for key in all_keys if key is not None for name in names}
    assert len(made) == 2 * len(names)
    assert {len(one) for one in made} == {32}


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (f"a = {FIRST}", 0o640, "expected mode 0600"),
        (f"a = {FIRST}", 0o602, "expected mode 0600"),
        ("", 0o600, "no key is in it"),
        ("# nothing\n", 0o600, "no key is in it"),
        (f"a = {FIRST[:-2]}", 0o600, "line 1: expected name = 64"),
        (f"\n{FIRST}", 0o600, "line 2: expected name = 64"),
        (f"a {SPACE.hex()[2:]} = {FIRST}", 0o600, "line 1: expected"),
        (f"a = {FIRST}\na = {SECOND}", 0o600, "line 2: that name"),
        (f"a = {FIRST}\nb = {FIRST}", 0o600, "line 2: that name"),
        ("#" * (MAX_FILE_BYTES + 1), 0o600, "longer than"),
    ],
)
def test_a_file_that_will_not_do(tmp_path: Path, text: str, mode: int, told: str) -> None:
    path = written(tmp_path, text, mode)
    with pytest.raises(TierError) as caught:
        read_keys(path)
    assert told in str(caught.value)
    assert path in str(caught.value)
    assert FIRST[:-2] not in str(caught.value)


def test_a_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, f"a = {FIRST}")
    os.chown(path, 4321, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "geteuid", lambda: 4321
    )
    if os.stat(path).st_uid == 0:
        pytest.skip("root's file is anybody's")
    with pytest.raises(TierError, match="neither this user's nor root's"):
        read_keys(path)


def test_no_secret_is_in_what_a_key_says_of_itself(tmp_path: Path) -> None:
    key = read_keys(written(tmp_path, f"a = {FIRST}")).writing(SPACE)
    assert key is not None
    assert repr(bytes.fromhex(FIRST)) not in repr(key)
    assert key.id not in key.secret


class Ring:
    def __init__(self, path: str) -> None:
        self.now_s = 0.0
        self.ring = Keyring(path, lambda: self.now_s)

    def name(self) -> str:
        key = self.ring.now().writing(SPACE)
        assert key is not None
        return key.name


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    rig = Ring(written(tmp_path, f"a = {FIRST}"))
    written(tmp_path, f"a = {FIRST}\nb = {SECOND}")
    assert rig.name() == "a", "not looked at each time"
    rig.now_s += LOOK_EVERY_S
    assert rig.name() == "b"
    assert rig.ring.trouble == ""


def test_what_cannot_be_used_changes_nothing_and_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, f"a = {FIRST}")
    rig = Ring(path)
    os.unlink(path)
    rig.now_s += LOOK_EVERY_S
    assert rig.name() == "a"
    assert "No such file" in rig.ring.trouble
    written(tmp_path, f"b = {THIRD[1:]}")
    rig.now_s += LOOK_EVERY_S
    assert rig.name() == "a"
    assert "line 1" in rig.ring.trouble
    assert THIRD[1:] not in rig.ring.trouble
    written(tmp_path, f"b = {THIRD}", 0o644)
    rig.now_s += LOOK_EVERY_S
    assert rig.name() == "a"
    assert "mode" in rig.ring.trouble
    os.chmod(path, 0o600)
    rig.now_s += LOOK_EVERY_S
    assert rig.name() == "b"
    assert rig.ring.trouble == ""


def test_a_first_file_has_to_be_in_order(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="No such file"):
        Keyring(str(tmp_path / "none"))

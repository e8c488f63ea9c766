"""A folder of this user's own: made for nobody else, refused when somebody else could be in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.shell.folders import make_private_directory, why_not_made
from tests.wire.asuser import needs_root


def test_it_is_made_for_this_user_alone_and_found_again(short_dir: Path) -> None:
    path = short_dir / "f"
    for _ in range(2):
        assert make_private_directory(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(("mode", "is_private"), [(0o750, False), (0o755, False), (0o700, True)])
def test_one_that_others_may_enter_is_taken_and_said_so(
    short_dir: Path, mode: int, is_private: bool
) -> None:
    path = short_dir / "f"
    path.mkdir()
    path.chmod(mode)
    assert make_private_directory(str(path)) is is_private
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("kind", ["file", "link", "group may write", "others may write"])
def test_whatever_else_is_there_is_refused(short_dir: Path, kind: str) -> None:
    path = short_dir / "f"
    if kind == "file":
        path.write_text("")
    elif kind == "link":
        (short_dir / "real").mkdir()
        path.symlink_to(short_dir / "real")
    else:
        path.mkdir()
        path.chmod(0o770 if kind == "group may write" else 0o1777)
    with pytest.raises(ConfigError, match=str(path)) as caught:
        make_private_directory(str(path))
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert ("symbolic link" in caught.value.message) == (kind == "link")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("plain", "{0}/plain is there and is no folder"),
        ("plain/b", "{0}/plain is no folder"),
        ("plain/b/c", "{0}/plain is no folder"),
        ("a/b", "the folder {0}/a, in which it would lie, is missing"),
        ("a/b/c", "the folder {0}/a/b, in which it would lie, is missing"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_stands_in_the_way_of_a_folder_is_named(
    short_dir: Path, path: str, words: str
) -> None:
    (short_dir / "plain").write_text("")
    with pytest.raises(OSError, match=r"directory|exists|long") as caught:
        os.mkdir(short_dir / path)
    why = why_not_made(f"{short_dir}/{path}", caught.value)
    assert why.startswith(words.format(short_dir))


@needs_root
def test_another_users_is_refused(short_dir: Path) -> None:
    path = short_dir / "f"
    path.mkdir(mode=0o700)
    os.chown(path, 60_001, 60_001)
    with pytest.raises(ConfigError, match="user 60001"):
        make_private_directory(str(path))

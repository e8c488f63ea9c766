"""The settings file: what is read, and that each slip is named with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server import configfile

KEYS = ("l1-size", "log-level")


def written(folder: Path, text: bytes) -> str:
    path = folder / "kvkeep.conf"
    path.write_bytes(text)
    return str(path)


def test_comments_blanks_and_quotes(tmp_path: Path) -> None:
    path = written(tmp_path, b"# sizes\n\n l1-size = 20G \nlog-level='INFO'\n")
    assert configfile.read(path, KEYS) == {"l1-size": "20G", "log-level": "INFO"}
    assert configfile.read(written(tmp_path, b'l1-size = "1=2"\n'), KEYS) == {"l1-size": "1=2"}
    assert configfile.read(written(tmp_path, b""), KEYS) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\nl1-size 20G\n", "line 2: expected key = value"),
        (b"l1_size = 20G\n", "line 1: 'l1_size' is no setting: did you mean l1-size?"),
        (b"qqq = 20G\n", "line 1: 'qqq' is no setting: there are l1-size, log-level"),
        (b"l1-size = 1G\n\nl1-size = 2G\n", "line 3: l1-size is set twice"),
        (b"\nl1-size =\n", "line 2: l1-size has no value; leave the line out"),
        (b"l1-size = ' '\n", "line 1: l1-size has no value"),
        (b"l1-size = \xff\n", "not UTF-8"),
        (b"#" * (configfile.MAX_FILE_BYTES + 1), "longer than 65536 bytes"),
    ],
)
def test_slips_are_named(tmp_path: Path, text: bytes, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        configfile.read(path, KEYS)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert words in caught.value.message
    assert path in caught.value.message


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "pipe", "no regular file"),
        (tmp_path, "director"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(ConfigError, match=words):
            configfile.read(str(path), KEYS)

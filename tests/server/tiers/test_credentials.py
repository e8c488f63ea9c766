"""Credentials: from a file that nobody else can read, or from the environment; never shown."""

import os
from pathlib import Path

import pytest

from server.tiers import credentials
from server.tiers.interface import TierError

VARIABLES = {"username": "KVKEEP_VALKEY_USERNAME", "password": "KVKEEP_VALKEY_PASSWORD"}
ENVIRON = {"KVKEEP_VALKEY_PASSWORD": "from-the-environment", "KVKEEP_VALKEY_USERNAME": ""}
SECRET = "hunter2"


def written(folder: Path, text: bytes, mode: int = 0o600) -> str:
    path = folder / "credentials"
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


def test_the_environment_without_what_is_empty() -> None:
    found = credentials.gather("", VARIABLES, ENVIRON)
    assert found == {"password": "from-the-environment"}


def test_a_file_comes_instead_of_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path, b"# ours\n\n username = me\npassword=a = b\n", 0o400)
    found = credentials.gather(path, VARIABLES, ENVIRON)
    assert found == {"username": "me", "password": "a = b"}


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (b"password=x", 0o640, "expected mode 0600"),
        (b"password=x", 0o604, "expected mode 0600"),
        (b"hunter2", 0o600, "line 1: expected key = value"),
        (b"\nhunter2=1", 0o600, "line 2: expected key = value"),
        (b"password=", 0o600, "line 1"),
        (b"password=hunter2\npassword=hunter2", 0o600, "line 2"),
        (b"password=hunter2\xff", 0o600, "not UTF-8"),
        (b"#" * (credentials.MAX_FILE_BYTES + 1), 0o600, "longer than"),
    ],
)
def test_a_file_that_will_not_do(tmp_path: Path, text: bytes, mode: int, told: str) -> None:
    path = written(tmp_path, text, mode)
    with pytest.raises(TierError) as caught:
        credentials.gather(path, VARIABLES, ENVIRON)
    assert told in str(caught.value)
    assert path in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_file_no_folder_no_waiting_for_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="No such file"):
        credentials.gather(str(tmp_path / "none"), VARIABLES, ENVIRON)
    with pytest.raises(TierError):
        credentials.gather(str(tmp_path), VARIABLES, ENVIRON)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(TierError, match="no regular file"):
        credentials.gather(str(tmp_path / "pipe"), VARIABLES, ENVIRON)

"""One live owner; a dead one's lock is free (B38)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.shell.lock import FileLock
from tests.wire.process import ROOT

SCRIPT = (
    "import sys\n"
    "from server.shell.lock import FileLock\n"
    "lock = FileLock(sys.argv[1], 'the child', 'it'); print('locked', flush=True)\n"
    "sys.stdin.read()\n"
)


def hold(path: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"locked\n"
    return child


def test_b38_a_live_owner_is_named_and_a_dead_one_forgotten(short_dir: Path) -> None:
    path = short_dir / "lock"
    child = hold(path)
    with pytest.raises(ConfigError, match="it is in use by the child") as caught:
        FileLock(str(path), "me", "it")
    assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
    child.kill()
    child.communicate()
    lock = FileLock(str(path), "me", "it")
    assert path.read_text() == "me"
    lock.release()
    lock.release()
    assert not path.exists()


def test_a_lock_file_replaced_in_between_does_not_make_two_owners(short_dir: Path) -> None:
    path = short_dir / "lock"
    first = FileLock(str(path), "first", "it")
    waiting = open(path, "rb")  # noqa: SIM115 - someone opened it before it was unlinked
    first.release()
    second = FileLock(str(path), "second", "it")
    waiting.close()
    with pytest.raises(ConfigError, match="second"):
        FileLock(str(path), "third", "it")
    second.release()


def test_a_path_that_cannot_be_made_is_a_config_error(short_dir: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open") as caught:
        FileLock(str(short_dir / "missing" / "lock"), "me", "it")
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_a_link_in_its_place_is_not_followed(short_dir: Path) -> None:
    (short_dir / "lock").symlink_to(short_dir / "elsewhere")
    with pytest.raises(ConfigError, match="cannot open"):
        FileLock(str(short_dir / "lock"), "me", "it")
    assert not (short_dir / "elsewhere").exists()

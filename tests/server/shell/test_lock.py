"""One live owner; a dead one's lock is free (B38)."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.shell.lock import DYING_LIMIT_S, FileLock, _write, is_going
from tests.wire.process import ROOT, wait_until

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


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "another user's"])
def test_b38_what_cannot_be_a_lock_is_one_clear_line(short_dir: Path, kind: str) -> None:
    path = short_dir / "lock"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can make another user's file")
        path.write_text("pid 1, theirs")
        os.chown(path, 60_001, 60_001)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError, match=r"it: .*lock") as caught:
        FileLock(str(path), "me", "it")
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert "\n" not in caught.value.message
    assert os.path.lexists(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (b"", "another server"),
        (b"a\nb", "by a$"),
        (b"\x1b[31m\xff\0", "by \\?"),
        (b"x" * 4096, "x{512}$"),
    ],
)
def test_b38_whatever_the_owner_wrote_the_error_is_one_clean_line(
    short_dir: Path, left: bytes, shown: str
) -> None:
    path = short_dir / "lock"
    path.write_bytes(left)
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=shown) as caught:
            FileLock(str(path), "me", "it")
    assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
    assert caught.value.message.isprintable()


def test_b18_a_lock_whose_file_was_removed_is_taken_again(short_dir: Path) -> None:
    path = short_dir / "lock"
    lock = FileLock(str(path), "me", "it")
    lock.regain()
    assert lock.is_held()
    before = os.listdir("/proc/self/fd")
    path.unlink()
    assert not lock.is_held()
    lock.regain()
    assert lock.is_held()
    assert path.read_text() == "me"
    assert len(os.listdir("/proc/self/fd")) == len(before)
    with pytest.raises(ConfigError, match="in use by me"):
        FileLock(str(path), "another", "it")
    lock.release()
    assert not lock.is_held()
    assert not path.exists()


def test_b38_one_that_another_took_meanwhile_is_neither_regained_nor_removed(
    short_dir: Path,
) -> None:
    path = short_dir / "lock"
    mine = FileLock(str(path), "me", "it")
    path.unlink()
    theirs = FileLock(str(path), "they", "it")
    with pytest.raises(ConfigError, match="in use by they"):
        mine.regain()
    mine.release()
    assert theirs.is_held()
    theirs.release()


def test_b38_a_full_file_system_does_not_keep_a_lock_from_being_taken() -> None:
    # /dev/full takes what it is told as a full file system does: not at all.
    with open("/dev/full", "r+b", buffering=0) as full:
        with pytest.raises(OSError, match="space"):
            full.write(b"x")
        _write(full.fileno(), "me")


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_an_owner_is_going_when_it_is_dead_or_killed_and_not_while_it_lives() -> None:
    child = sleeper()
    try:
        owner = f"pid {child.pid}, server x, started y"
        assert not is_going(owner)
        os.kill(child.pid, signal.SIGSTOP)
        assert not is_going(owner)  # it may go on
        child.kill()
        assert wait_until(lambda: is_going(owner))  # a zombie: nobody has waited for it
    finally:
        child.kill()
        child.wait()
    assert is_going(owner)
    for text in ("", "the child", "pid x, server", "pid 12345678901,", f"pid {os.getpid()}"):
        assert not is_going(text)


def test_a_lock_of_a_dead_owner_is_waited_for(short_dir: Path) -> None:
    """As after a kill -9: the owner is gone, the kernel has not let go yet."""
    path = short_dir / "lock"
    child = sleeper()
    child.kill()
    child.wait()
    last_breath = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(last_breath, f"pid {child.pid}, server x".encode())
    fcntl.flock(last_breath, fcntl.LOCK_EX)
    timer = threading.Timer(0.5, os.close, (last_breath,))
    timer.start()
    begun = time.monotonic()
    lock = FileLock(str(path), "me", "it")
    assert time.monotonic() - begun >= 0.4
    timer.join()
    lock.release()


def test_the_wait_for_a_dead_owner_is_bounded(short_dir: Path) -> None:
    path = short_dir / "lock"
    child = sleeper()
    child.kill()
    child.wait()
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(held, f"pid {child.pid}, server x".encode())
    fcntl.flock(held, fcntl.LOCK_EX)
    begun = time.monotonic()
    with pytest.raises(ConfigError, match="in use by pid") as caught:
        FileLock(str(path), "me", "it")
    assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
    assert DYING_LIMIT_S <= time.monotonic() - begun < DYING_LIMIT_S + 5
    os.close(held)

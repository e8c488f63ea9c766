"""The arena's folder comes back after it was removed, without an identity (B18)."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from pathlib import Path

import pytest

from server.shell.folders import make_private_directory
from server.shell.foothold import Foothold
from server.shell.lock import FileLock

FOLDERS = ("namespaces", "parties")


def made(folder: Path) -> tuple[Foothold, FileLock]:
    make_private_directory(str(folder))
    lock = FileLock(f"{folder}/lock", "me", "it")
    for name in FOLDERS:
        (folder / name).mkdir()
    (folder / "arena").write_text("identity")
    return Foothold(str(folder), lock, f"{folder}/arena", FOLDERS), lock


def test_while_all_is_there_nothing_happens(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foothold, lock = made(short_dir / "a")
    before = {path: path.stat().st_ino for path in (short_dir / "a").iterdir()}
    foothold.stand()
    assert {path: path.stat().st_ino for path in (short_dir / "a").iterdir()} == before
    assert caplog.text == ""
    lock.release()


@pytest.mark.parametrize("what", ["everything", "lock", *FOLDERS])
def test_what_was_removed_is_made_again_and_no_server_will_take_it_over(
    short_dir: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.WARNING)
    folder = short_dir / "a"
    foothold, lock = made(folder)
    if what == "lock":
        (folder / "lock").unlink()
    else:
        shutil.rmtree(folder if what == "everything" else folder / what)
    for _ in range(2):
        foothold.stand()
        assert lock.is_held()
        assert {path.name for path in folder.iterdir()} == {"lock", *FOLDERS}
    assert caplog.text.count("arena_removed") == 1
    lock.release()


def test_a_folder_that_another_server_has_by_now_is_left_to_it(short_dir: Path) -> None:
    folder = short_dir / "a"
    foothold, lock = made(folder)
    shutil.rmtree(folder)
    _, theirs = made(folder)
    with pytest.raises(OSError, match="in use by me") as caught:
        foothold.stand()
    assert caught.value.errno == errno.EBUSY
    assert (folder / "arena").read_text() == "identity"
    lock.release()
    assert theirs.is_held()
    theirs.release()


def test_after_the_end_a_late_thread_spoils_nothing_for_the_next_server(short_dir: Path) -> None:
    folder = short_dir / "a"
    foothold, lock = made(folder)
    foothold.leave()
    lock.release()
    with pytest.raises(OSError, match="let go") as caught:
        foothold.stand()
    assert caught.value.errno == errno.ESHUTDOWN
    assert {path.name for path in folder.iterdir()} == {"arena", *FOLDERS}


def test_a_folder_that_cannot_be_made_is_an_error(short_dir: Path) -> None:
    folder = short_dir / "a"
    foothold, lock = made(folder)
    shutil.rmtree(folder)
    folder.write_text("a file in its place")
    with pytest.raises(OSError, match="no folder"):
        foothold.stand()
    folder.unlink()
    foothold.stand()
    assert lock.is_held()
    lock.release()


def test_threads_that_notice_at_once_make_it_once(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foothold, lock = made(short_dir / "a")
    shutil.rmtree(short_dir / "a")
    threads = [threading.Thread(target=foothold.stand) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lock.is_held()
    assert caplog.text.count("arena_removed") == 1
    lock.release()

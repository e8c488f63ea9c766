"""The lock of a folder: one live owner, and it notices when its file is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.tiers.disk.files import Files
from server.tiers.disk.hold import NAME, Hold
from server.tiers.interface import TierError

OWNER = """
import sys, time
from server.tiers.disk.files import Files
from server.tiers.disk.hold import Hold
hold = Hold(Files(), sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


WHO = rf"in use by another server \(pid {os.getppid()}, its porter {os.getpid()}\); give each"


def test_one_at_a_time(tmp_path: Path) -> None:
    hold = Hold(Files(), str(tmp_path))
    began_s = time.monotonic()
    with pytest.raises(TierError, match=WHO):
        Hold(Files(), str(tmp_path), dying_s=0.1)
    assert time.monotonic() - began_s < 2.0
    hold.release()
    Hold(Files(), str(tmp_path)).release()


def test_it_goes_with_a_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(TierError, match=rf"pid {os.getpid()}, its porter {owner.pid}\)"):
        Hold(Files(), str(tmp_path), dying_s=0.0)
    owner.kill()
    Hold(Files(), str(tmp_path)).release()
    owner.wait(10.0)
    owner.stdout.close()


def test_a_removed_or_replaced_file_is_noticed(tmp_path: Path) -> None:
    hold = Hold(Files(), str(tmp_path))
    assert hold.is_held()
    (tmp_path / NAME).unlink()
    assert not hold.is_held()
    (tmp_path / NAME).write_bytes(b"somebody else")
    assert not hold.is_held()
    hold.release()


def test_a_garbled_owner_is_not_shown(tmp_path: Path) -> None:
    hold = Hold(Files(), str(tmp_path))
    (tmp_path / NAME).write_bytes(b"\x1b[31m\xff")
    with pytest.raises(TierError, match="in use by another server; give each"):
        Hold(Files(), str(tmp_path), dying_s=0.0)
    hold.release()

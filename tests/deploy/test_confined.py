"""The server with a tier and pages works under the unit's system call filter and memory rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.deploy import confined
from tests.repository import tree
from tests.wire.client import Engine
from tests.wire.ports import held_port
from tests.wire.process import ROOT, ServerProcess, wait_until

UNIT = tree.ROOT / "deploy/systemd/kvkeep.service"
pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or not confined.can(),
    reason="needs systemd-analyze, libc6-dev on x86-64, Linux 6.3",
)
PREFIX = (sys.executable, "-m", "tests.deploy.confined", str(UNIT))


def test_what_the_unit_forbids_is_refused() -> None:
    code = (
        "import ctypes, mmap, os\n"
        "def refused(call, *arguments):\n"
        "    try:\n"
        "        call(*arguments)\n"
        "    except PermissionError:\n"
        "        return True\n"
        "    return False\n"
        "print(refused(os.chroot, '/'), refused(os.setuid, os.getuid()),\n"
        "      refused(mmap.mmap, -1, 4096, 34, 7), refused(os.listdir, '/'))\n"
    )
    done = subprocess.run(
        [*PREFIX, sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "True True True False\n"


def test_the_server_its_tier_and_its_pages_work(short_dir: Path, shm_dir: Path) -> None:
    arguments = ("--l1-size", "64M", "--l2", f"disk:{short_dir}/tier?size=64M")
    keys = [os.urandom(16) for _ in range(4)]
    short_dir.chmod(0o750)  # the group may pass
    environ = {"KVKEEP_GROUP": str(os.getegid())}
    with (
        held_port() as port,
        ServerProcess(
            short_dir,
            shm_dir / "a",
            *arguments,
            environ={**environ, "KVKEEP_HTTP": f"127.0.0.1:{port}"},
            prefix=PREFIX,
        ) as server,
    ):
        assert "tiers L1 > disk" in server.line
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            assert engine.save(keys, [0, 1, 2, 3]) == 4
            found = engine.lookup(keys)
            assert engine.read(found.lease, found.ready).shape[0] == 4

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as page:
                    return bool(page.status == 200)
            except OSError:
                return False

        assert wait_until(is_ready, 20, 0.1), server.log()
        assert len(list((short_dir / "tier").iterdir())) > 0
        assert server.log() == ""
        assert server.terminate() == 0

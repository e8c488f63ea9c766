"""A client in JavaScript, written from docs/protocol.md alone, against a real server.

Installs the client's two npm packages under ``build/node`` as its lock file says, once per lock
file, and runs it there. Knows nothing of the protocol. Runs in the pytest process.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire.ports import free_port
from tests.wire.process import ServerProcess

pytestmark = pytest.mark.node

HERE = Path(__file__).resolve().parent
RUN_LIMIT_S = 60.0
INSTALL_LIMIT_S = 300.0
SIZES = ("--l1-size", "64M", "--extent-size", "4M")
STEPS = [
    "golden vectors",
    "HELLO, PING and the refusals of both",
    "REGISTER_KV_CACHE and MAPPED of 2 extents",
    "STORE and COMMIT of 3 chunks in 2 shards",
    "LOOKUP, RETRIEVE, bytes and generations compared, RELEASE, END_SESSION",
    "END_SESSION without RETRIEVE, a miss, UNREGISTER",
    "all held",
]


@pytest.fixture(scope="module")
def client_dir() -> Path:
    """A folder with the client's files and its packages installed."""
    folder = HERE.parents[1] / "build" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (*HERE.glob("*.mjs"), *HERE.glob("package*.json")):
        shutil.copyfile(source, folder / source.name)
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    stamp = folder / "installed.txt"
    if not stamp.is_file() or stamp.read_text(encoding="ascii") != wanted:
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(
            command,
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        stamp.write_text(wanted, encoding="ascii")
    return folder


def run(folder: Path, server: ServerProcess, *more: str) -> subprocess.CompletedProcess[str]:
    helper = [sys.executable, str(HERE / "side_helper.py")]
    return subprocess.run(
        ["node", "client.mjs", server.url, server.side_path, "--", *helper, *more],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_whole_life(transport: str, client_dir: Path, short_dir: Path, shm_dir: Path) -> None:
    url = f"tcp://127.0.0.1:{free_port()}" if transport == "tcp" else None
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    with ServerProcess(short_dir, shm_dir / "arena", *SIZES, url=url, environ=environ) as server:
        done = run(client_dir, server)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()}"
        assert done.stdout.splitlines() == STEPS
        assert server.terminate() == 0


@pytest.mark.timeout(400)
def test_the_client_notices_wrong_bytes(client_dir: Path, short_dir: Path, shm_dir: Path) -> None:
    """The control: with one byte of the pool changed after COMMIT, the comparison fails."""
    with ServerProcess(short_dir, shm_dir / "arena", *SIZES) as server:
        done = run(client_dir, server, "--spoil")
        assert done.returncode == 1
        assert done.stdout.splitlines() == STEPS[:4]
        assert "differs" in done.stderr


def test_the_lock_file_records_no_download_addresses() -> None:
    lock = json.loads((HERE / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert len(packages) == 4
    assert all("integrity" in entry and "resolved" not in entry for entry in packages.values())

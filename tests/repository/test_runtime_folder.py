"""What tests leave behind they leave in a folder of their own, never in the user's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from protocol.endpoint import SYSTEM_FOLDER
from tests.wire.process import ServerProcess


def test_a_killed_servers_lock_is_not_left_in_the_users_folder(
    short_dir: Path, shm_dir: Path, runtime_folder: Path
) -> None:
    port, elsewhere = unused_port()
    server = ServerProcess(short_dir, shm_dir / "a", url=f"tcp://127.0.0.1:{port}")
    server.kill()
    assert names_of(port) <= {path.name for path in (runtime_folder / "kvkeep").iterdir()}
    assert not any(path.exists() for path in elsewhere)


def unused_port() -> tuple[int, list[Path]]:
    """A free port of which nothing older lies in the user's folders, and what could lie there."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        folders = (Path(f"/tmp/kvkeep-{os.geteuid()}"), Path(SYSTEM_FOLDER))
        elsewhere = [folder / name for folder in folders for name in names_of(port)]
        if not any(path.exists() for path in elsewhere):
            return port, elsewhere


def names_of(port: int) -> set[str]:
    return {f"tcp-{port}.lock", f"tcp-{port}.side"}

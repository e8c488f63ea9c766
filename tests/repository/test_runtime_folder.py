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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ServerProcess(short_dir, shm_dir / "a", url=f"tcp://127.0.0.1:{port}")
    server.kill()
    left = {f"tcp-{port}.lock", f"tcp-{port}.side"}
    assert left <= {path.name for path in (runtime_folder / "kvkeep").iterdir()}
    for users in (Path(f"/tmp/kvkeep-{os.geteuid()}"), Path(SYSTEM_FOLDER)):
        assert not any((users / name).exists() for name in left)

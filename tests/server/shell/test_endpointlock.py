"""One server at an endpoint, and nothing removed there that is no dead server's socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from protocol import endpoint as endpoints
from protocol.errors import ConfigError, ErrorCode
from server.shell.access import Access
from server.shell.endpointlock import lock_endpoint
from server.shell.lock import FileLock
from server.shell.socketfile import SocketFile


def lock(folder: Path, name: str = "s") -> FileLock:
    endpoint = endpoints.parse(f"ipc://{folder}/{name}")
    return lock_endpoint(endpoint, str(folder), Access.own(), SocketFile(endpoint.path))


def test_the_second_is_refused_until_the_first_has_gone(short_dir: Path) -> None:
    first = lock(short_dir)
    with pytest.raises(ConfigError) as caught:
        lock(short_dir)
    assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
    first.release()
    lock(short_dir).release()


def test_the_last_folder_is_made_and_one_above_it_is_not(short_dir: Path) -> None:
    lock(short_dir / "made").release()
    assert (short_dir / "made").is_dir()
    with pytest.raises(ConfigError, match="cannot be made"):
        lock(short_dir / "none" / "made")


def test_a_dead_servers_socket_goes_and_other_files_stay(short_dir: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(short_dir / "s"))
    left.close()
    lock(short_dir).release()
    assert not (short_dir / "s").exists()
    (short_dir / "notes").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError):
        lock(short_dir, "notes")
    assert (short_dir / "notes").read_text(encoding="utf-8") == "mine"
    again = short_dir / "notes"
    os.unlink(again)
    lock(short_dir, "notes").release()  # the refused one did not keep the lock

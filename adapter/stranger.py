"""Whether a server of another user is one that this machine's administrator put there.

Purpose: an engine hands its KV cache to whoever listens on the side socket. The own user and root
are trusted. Another user's server (a system service that serves a group) is told from a stranger's
by its place: a folder that nobody but root or this user can have given it. Must not know: packets.
Runs in: the keeper's thread.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from protocol.endpoint import SYSTEM_FOLDER
from protocol.errors import ErrorCode, UnreachableError

_CREDENTIALS: Final = struct.Struct("3i")
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def check_server(connected: socket.socket, path: str, is_told: bool) -> None:
    """Refuses a listener that a stranger could have put there.

    Args:
        connected: to it.
        path: of its socket.
        is_told: whether whoever listens on a tcp port named the path. Any user can listen on a
            free port and name a folder of their own, so then only the system's folder counts.

    Raises:
        UnreachableError: NOT_PERMITTED.
        OSError: a folder on the way is gone.
    """
    blob = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(blob)
    if uid in (0, os.geteuid()):
        return
    folder = os.path.dirname(path)
    if is_told and folder != SYSTEM_FOLDER:
        why = f"and over tcp another user's server is trusted in {SYSTEM_FOLDER} only"
    else:
        # Both ways there, since a link on the first could lead elsewhere by now.
        weak = weak_step(folder, uid) or weak_step(os.path.realpath(folder), uid)
        if weak is None:
            return
        why = f"and others than root and user {os.geteuid()} could have made {weak}"
    raise UnreachableError(
        ErrorCode.NOT_PERMITTED, f"the server at {path} runs as user {uid}, {why}", uid=uid
    )


def weak_step(folder: str, uid: int) -> str | None:
    """The first folder on the way to a server's that a third user controls.

    Args:
        folder: absolute, of the server's socket; its own to write, nobody else's.
        uid: user of the server.

    Returns:
        Its path, or None when root or this user made every folder on the way (and gave the last
        one to the server), so that no third user could have put a socket of their own there.
    """
    trusted = {0, os.geteuid()}
    last = Path(folder)
    steps = [*reversed(last.parents), last]
    for number, step in enumerate(steps):
        found = os.lstat(step)
        is_last = number == len(steps) - 1
        if found.st_uid not in (trusted | {uid} if is_last else trusted):
            return str(step)
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & _BY_OTHERS:
            continue
        # With the sticky bit what root or we have made in it stays ours.
        is_safe = found.st_mode & stat.S_ISVTX and not is_last
        if not is_safe or os.lstat(steps[number + 1]).st_uid not in trusted:
            return str(step)
    return None

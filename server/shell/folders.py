"""Folders that belong to this user alone.

Must not know: what is kept in them. Runs in: any thread.
"""

from __future__ import annotations

import os
import stat

from protocol.errors import ConfigError, ErrorCode


def make_private_directory(path: str) -> bool:
    """Makes a directory for this user alone, or checks that it is one.

    Args:
        path: absolute; the parent exists.

    Returns:
        Whether it is as this function makes it: ours, and nobody else may enter.

    Raises:
        ConfigError: INVALID_CONFIG when it belongs to somebody else or others may write in it.
        OSError: it cannot be made.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.stat(path, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(ErrorCode.INVALID_CONFIG, f"{path} is no directory", path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{path} must belong to user {os.geteuid()} and be writable by nobody else; it belongs "
            f"to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            path=path,
        )
    return found.st_mode & 0o077 == 0

"""Folders that belong to this user alone.

Must not know: what is kept in them. Runs in: any thread.
"""

from __future__ import annotations

import errno
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
        is_link = stat.S_ISLNK(found.st_mode)
        what = "a symbolic link, not a folder: name the folder itself" if is_link else "no folder"
        raise ConfigError(ErrorCode.INVALID_CONFIG, f"{path} is {what}", path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{path} must belong to user {os.geteuid()} and be writable by nobody else; it belongs "
            f"to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            path=path,
        )
    return found.st_mode & 0o077 == 0


def why_not_made(path: str, error: OSError) -> str:
    """Why a folder could not be made, with the folder on the way to it that is in the way.

    Args:
        path: absolute, of the folder.
        error: of the attempt.

    Returns:
        A part of a sentence.
    """
    if error.errno == errno.EEXIST:
        return f"{path} is there and is no folder"
    parent = os.path.dirname(path)
    while parent != os.path.dirname(parent) and not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        return f"{parent} is no folder"
    if error.errno == errno.ENOENT and parent != os.path.dirname(path):
        missing = os.path.dirname(path)
        return f"the folder {missing}, in which it would lie, is missing: only the last one is made"
    return error.strerror or str(error)

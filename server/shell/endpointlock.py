"""The lock of an endpoint: one server at a time listens there.

Purpose: the folder of the endpoint's lock is made and checked, the lock is taken, and what a dead
server left at the socket's place is removed, or the start is refused with one line. Must not know:
who connects. Runs in: the main thread, at start.
"""

from __future__ import annotations

import os

from protocol.endpoint import Endpoint
from protocol.errors import ConfigError, ErrorCode
from server.shell.access import Access
from server.shell.folders import why_not_made
from server.shell.lock import FileLock, owner_line
from server.shell.socketfile import SocketFile


def lock_endpoint(
    endpoint: Endpoint, runtime_dir: str, who: Access, socket_file: SocketFile
) -> FileLock:
    """Takes it.

    Args:
        endpoint: which.
        runtime_dir: folder of sockets that the endpoint does not name.
        who: may connect; the folder is given to them.
        socket_file: of the endpoint; something else that lies there is not removed.

    Returns:
        The lock; the caller releases it.

    Raises:
        ConfigError: ENDPOINT_IN_USE, INVALID_CONFIG.
    """
    path = endpoint.lock_path(runtime_dir)
    folder = os.path.dirname(path)
    owner = owner_line()
    try:
        if folder == runtime_dir:
            who.make_folder(folder)
        elif not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
            who.make_folder(folder)
        who.check_reach(folder)
    except ConfigError as error:
        if "path" not in error.detail:
            raise
        text = f"endpoint {endpoint.url}: {error.message}"
        raise ConfigError(error.code, text, **error.detail) from error
    except OSError as error:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"endpoint {endpoint.url}: the folder {folder} cannot be made: "
            f"{why_not_made(folder, error)}",
        ) from error
    lock = FileLock(path, owner, f"the endpoint {endpoint.url}")
    try:
        if not endpoint.is_tcp:
            socket_file.make_way()  # ZMQ would remove whatever lies there
    except ConfigError:
        lock.release()
        raise
    except OSError as error:
        lock.release()
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"endpoint {endpoint.url}: what lies there cannot be removed: {error.strerror}",
        ) from error
    return lock

"""The server's settings file: one ``key = value`` a line.

Purpose: settings of a server that a supervisor starts; the command line and the environment come
before it. A line that is no setting is refused with its number. Must not know: what settings mean.
Runs in: the main process, at start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from protocol.errors import ConfigError, ErrorCode
from server.schema import nearest

MAX_FILE_BYTES = 64 << 10


def read(path: str, keys: Collection[str]) -> dict[str, str]:
    """Reads a settings file.

    Args:
        path: absolute.
        keys: settings that there are.

    Returns:
        Value by key; quotes around a value are taken off, ``#`` begins a comment line.

    Raises:
        ConfigError: INVALID_CONFIG: it cannot be read, is no regular file or too long, or a line
            is no setting, names an unknown one, one for the second time, or one without a value.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text(path).splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise _invalid(path, f"line {number}: expected key = value")
        if key not in keys:
            meant = nearest(key, keys)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(keys)}"
            raise _invalid(path, f"line {number}: {key[:60]!r} is no setting: {hint}")
        if key in values:
            raise _invalid(path, f"line {number}: {key} is set twice")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if not value.strip():
            raise _invalid(
                path, f"line {number}: {key} has no value; leave the line out for the default"
            )
        values[key] = value
    return values


def text(path: str) -> str:
    """The text of a small file.

    Args:
        path: of the file.

    Raises:
        ConfigError: INVALID_CONFIG: it cannot be read, is no regular file, longer than 64 KiB, or
            not UTF-8.
    """
    try:
        # Without O_NONBLOCK a pipe would keep the start waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _invalid(path, "it is no regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _invalid(path, f"longer than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(path, "it is not UTF-8") from error


def _invalid(path: str, what: str) -> ConfigError:
    return ConfigError(
        ErrorCode.INVALID_CONFIG, f"config={path!r}: {what}", key="config", value=path
    )

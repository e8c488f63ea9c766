"""Credentials of a tier: from a file, or from the environment.

Purpose: a secret is read where it is used, by the porter; it is in no URL, no process list, no log
line and no error. Must not know: any engine. Runs in: the porter, when it opens its tier.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from server.tiers.interface import TierError

MAX_FILE_BYTES = 16 << 10
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def gather(path: str, variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Reads what there is.

    Args:
        path: of a file of ``key = value`` lines, in which ``#`` begins a comment line; empty for
            the environment.
        variables: by key, the environment variable that is read without a file.
        environ: the environment.

    Returns:
        Value by key; without those that are not given.

    Raises:
        TierError: the file cannot be read, others may read it, or a line is none. The text shows
            no line of it.
    """
    if path:
        return _from_file(path, variables)
    found = {key: environ.get(variable, "") for key, variable in variables.items()}
    return {key: value for key, value in found.items() if value}


def _from_file(path: str, keys: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or key not in keys or not value or key in values:
            raise _unfit(
                path, f"line {number}: expected key = value, each key once: {', '.join(keys)}"
            )
        values[key] = value
    return values


def _text(path: str) -> str:
    try:
        # Without O_NONBLOCK a pipe would keep the start waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _unfit(path, "it is no regular file")
            if status.st_mode & _OTHERS:
                raise _unfit(path, "others than its owner may use it; expected mode 0600 or 0400")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unfit(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _unfit(path, f"it is longer than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Without its cause, which holds the bytes.
        raise _unfit(path, "it is not UTF-8") from None


def _unfit(path: str, what: str) -> TierError:
    return TierError(f"credentials={path!r}: {what}")

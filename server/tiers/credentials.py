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
    text = text_of("credentials", path, MAX_FILE_BYTES)
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or key not in keys or not value or key in values:
            what = f"line {number}: expected key = value, each key once: {', '.join(keys)}"
            raise unfit("credentials", path, what)
        values[key] = value
    return values


def text_of(option: str, path: str, most_bytes: int, is_ours: bool = False) -> str:
    """Reads a file that nobody but its owner may use.

    Args:
        option: that names it, for errors.
        path: of the file.
        most_bytes: that it may have.
        is_ours: whether its owner has to be this user, or root.

    Raises:
        TierError: it cannot be read, or others may read it. The text shows nothing of it.
    """
    try:
        # Without O_NONBLOCK a pipe would keep the start waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise unfit(option, path, "it is no regular file")
            if status.st_mode & _OTHERS:
                what = "others than its owner may use it; expected mode 0600 or 0400"
                raise unfit(option, path, what)
            if is_ours and status.st_uid not in (os.geteuid(), 0):
                raise unfit(option, path, "it is neither this user's nor root's")
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise unfit(option, path, f"it cannot be read: {error.strerror}") from error
    if len(data) > most_bytes:
        raise unfit(option, path, f"it is longer than {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Without its cause, which holds the bytes.
        raise unfit(option, path, "it is not UTF-8") from None


def unfit(option: str, path: str, what: str) -> TierError:
    """The error about a file, which shows nothing of what is in it."""
    return TierError(f"{option}={path!r}: {what}")

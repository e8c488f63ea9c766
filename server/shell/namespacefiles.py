"""The namespaces of the arena, a small file each: the next server learns whose bytes it found.

Purpose: an extent's header names its namespace by fingerprint only; the file has it whole, and the
fingerprint proves it. A file is there before the first extent of its namespace. Must not know:
extents, engines. Runs in: the arena's thread; ``read`` in the main thread, at start.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from protocol import codec, limits
from protocol.errors import KvkeepError
from protocol.ids import Fingerprint
from protocol.namespace import Namespace, fingerprint

FOLDER = "namespaces"
_NAME = re.compile(r"[0-9a-f]{32}")

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing of the file that was to be opened: it may be whole."""


def keep(directory: str, name: Fingerprint, namespace: Namespace) -> None:
    """Writes a namespace's file unless it is there.

    Args:
        directory: the arena's.
        name: fingerprint of the namespace.
        namespace: what it is.

    Raises:
        OSError: it cannot be written.
    """
    path = f"{directory}/{FOLDER}/{name.hex()}"
    if not os.path.exists(path):
        write_whole(path, codec.bytes_from_struct(namespace))


def drop(directory: str, name: Fingerprint) -> None:
    """Removes a namespace's file; one that is gone already is fine."""
    try:
        os.unlink(f"{directory}/{FOLDER}/{name.hex()}")
    except FileNotFoundError:
        pass


def read(directory: str) -> tuple[dict[Fingerprint, Namespace], dict[str, str]]:
    """Reads what a predecessor left.

    Args:
        directory: the arena's; its folder of namespaces exists.

    Returns:
        Namespaces by fingerprint, and the files that are none, each with why; what is not named
        like one is not looked at.

    Raises:
        OSError: out of descriptors or memory.
    """
    found: dict[Fingerprint, Namespace] = {}
    bad: dict[str, str] = {}
    for entry in sorted(os.listdir(f"{directory}/{FOLDER}")):
        path = f"{directory}/{FOLDER}/{entry}"
        if _NAME.fullmatch(entry) is None:
            continue
        try:
            data = read_whole(path, limits.MAX_FRAME_BYTES)
            namespace = codec.struct_from_plain(codec.plain_from_bytes(data), Namespace)
        except (OSError, KvkeepError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise
            bad[path] = f"no namespace: {error}"
            continue
        if fingerprint(namespace).hex() != entry:
            bad[path] = "no namespace of its fingerprint"
            continue
        found[Fingerprint(bytes.fromhex(entry))] = namespace
    return found, bad


def write_whole(path: str, data: bytes) -> None:
    """Writes a file so that a reader sees all of it or nothing, whenever this process is killed.

    Args:
        path: of the file; ``.new`` is appended for a moment.
        data: its content.

    Raises:
        OSError: it cannot be written; nothing is left behind then.
    """
    fresh = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(fresh, flags, 0o600)
        try:
            if os.write(fd, data) != len(data):
                raise OSError(28, "No space left on device")
        finally:
            os.close(fd)
        os.replace(fresh, path)
    except OSError:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise


def read_whole(path: str, max_bytes: int) -> bytes:
    """Reads a file that may be anything.

    Args:
        path: of the file.
        max_bytes: longest that is expected.

    Returns:
        Its content.

    Raises:
        OSError: it is no regular file of this user, too long, or cannot be read.
    """
    # Without O_NONBLOCK a pipe would keep the start waiting.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(22, "no regular file of this user")
        data = os.read(fd, max_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise OSError(27, f"longer than {max_bytes} bytes")
    return data

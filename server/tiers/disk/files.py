"""Every system call that the disk tier makes, in one place.

Purpose: tests put a subclass in its place that fails at the n-th call, so what the tier does about
EIO or a short write is seen without a broken disk. Must not know: slots, names, the index. Runs in:
the porter's worker threads and the tier's own; file calls let the interpreter go.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Sequence

from server.core.tiers.parts import Status
from server.sizes import format_size
from server.tiers.interface import HEADER_BYTES

BLOCK_BYTES = 4096
"""What O_DIRECT asks of offsets, lengths and addresses on any disk in use; also the room before
each value's payload that holds its header."""

_TRIES = 8
"""To make a folder that others move away meanwhile."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)


def blocks(num_bytes: int) -> int:
    """Bytes, rounded up to whole blocks."""
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def status_of(error: OSError) -> Status:
    """What an error of the file system means for one value."""
    if error.errno in _NO_ROOM:
        return Status.NO_ROOM
    return Status.ABSENT if error.errno == errno.ENOENT else Status.ERROR


class Files:
    """The system calls; errors are OSError."""

    def make_folder(self, path: str) -> bool:
        """Makes a folder of this user alone; returns whether it was missing.

        Those above it are not made: one that is missing may be a disk that is not mounted, and
        what is written in its place fills another one.
        """
        for _ in range(_TRIES):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if os.path.isdir(path):
                    return False
                if os.path.lexists(path) and not os.path.isdir(path):
                    text = "it is there and is no folder"
                    raise NotADirectoryError(errno.ENOTDIR, text) from None
                # Another server moved it away just now, as CLEAR does, and may have made it anew.
            except FileNotFoundError:
                text = f"{os.path.dirname(path)} is not there, and only the last folder is made"
                raise FileNotFoundError(errno.ENOENT, f"{text}: is a disk not mounted?") from None
            else:
                return True
        raise FileNotFoundError(errno.ENOENT, f"{path} goes each time that it is made")

    def room(self, path: str) -> tuple[int, int]:
        """Bytes of a folder's file system in all, and those that are left for this user."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def open(self, path: str, flags: int) -> int:
        """A descriptor; a file that is made is of this user alone."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, fd: int) -> None:
        """Closes a descriptor."""
        os.close(fd)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes read, perhaps fewer than fit."""
        return os.preadv(fd, buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes written, perhaps fewer than asked."""
        return os.pwritev(fd, buffers, offset)

    def allocate(self, fd: int, num_bytes: int) -> None:
        """Gives a file its length and its blocks."""
        os.posix_fallocate(fd, 0, num_bytes)

    def set_length(self, fd: int, num_bytes: int) -> None:
        """Makes a file longer, without blocks, or shorter."""
        os.ftruncate(fd, num_bytes)

    def sync(self, fd: int) -> None:
        """Returns when a file's bytes are on the disk."""
        os.fdatasync(fd)

    def sync_folder(self, path: str) -> None:
        """Returns when what was renamed or removed in a folder is on the disk.

        Some file systems sync no folders: those do what they can by themselves.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        finally:
            os.close(fd)

    def forget_cached(self, fd: int) -> None:
        """Lets the kernel drop a file's cached pages; for files that O_DIRECT was refused for."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def remove(self, path: str) -> None:
        """Removes a file."""
        os.unlink(path)

    def rename(self, path: str, target: str) -> None:
        """Moves a file or folder over what is there."""
        os.rename(path, target)

    def touch(self, fd: int, time_ns: int) -> None:
        """Sets a file's times."""
        os.utime(fd, ns=(time_ns, time_ns))

    def stat(self, path: str) -> os.stat_result:
        """Of a path, links not followed."""
        return os.stat(path, follow_symlinks=False)

    def names(self, path: str) -> list[str]:
        """Names in a folder, in any order."""
        return os.listdir(path)


def shortage(files: Files, folder: str, size_bytes: int, is_short: bool = False) -> str:
    """What there is to say of a size that the file system does not have; mostly nothing.

    Args:
        files: the system calls.
        folder: of the tier.
        size_bytes: the operator's.
        is_short: whether the file system was full when the tier last needed more of it.
    """
    try:
        whole_bytes, _ = files.room(folder)
    except OSError:
        whole_bytes = 0
    has, wanted = format_size(whole_bytes), format_size(size_bytes)
    is_beyond = 0 < whole_bytes < size_bytes
    # Without a figure that moves: the same trouble is one line of the log, not one each time.
    if is_short:
        own = f", {has} in all," if is_beyond else ""
        text = f"{folder}: its file system{own} is full before size={wanted} is reached"
        return f"{text}: new values replace older ones sooner, or are not taken"
    return f"{folder}: size={wanted}, and its file system has {has} in all" if is_beyond else ""


def open_direct(files: Files, path: str, flags: int) -> tuple[int, bool]:
    """Opens a file past the page cache where the file system lets us.

    Args:
        files: the system calls.
        path: of the file.
        flags: for ``open``.

    Returns:
        A descriptor, and whether it is O_DIRECT.

    Raises:
        OSError: it cannot be opened either way.
    """
    try:
        return files.open(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return files.open(path, flags & ~os.O_EXCL), False


def read_all(files: Files, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Reads until the buffers are full or the file ends.

    Args:
        files: the system calls.
        fd: of the file.
        buffers: to fill, in order; aligned for O_DIRECT.
        offset: in the file.

    Returns:
        Bytes read.

    Raises:
        OSError: of the first call that failed.
    """
    return _whole(files.preadv, fd, buffers, offset)


def write_all(files: Files, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Writes all of the buffers.

    Args:
        files: the system calls.
        fd: of the file.
        buffers: to write, in order; aligned for O_DIRECT.
        offset: in the file.

    Raises:
        OSError: of the first call that failed; EIO when one wrote nothing.
    """
    if _whole(files.pwritev, fd, buffers, offset) != sum(len(one) for one in buffers):
        raise OSError(errno.EIO, "nothing was written")


def _whole(call: object, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
    assert callable(call)
    done, rest = 0, list(buffers)
    while rest:
        step = call(fd, rest, offset + done)
        if step <= 0:
            break
        done += step
        while rest and step >= len(rest[0]):
            step -= len(rest.pop(0))
        if rest and step:
            rest[0] = rest[0][step:]
    return done


class HeaderBlocks(threading.local):
    """One aligned block for each thread, in which a value's header goes to and from the disk.

    Attributes:
        block: uint8[BLOCK_BYTES]; behind header and name it is zeros whenever it is written.
    """

    def __init__(self) -> None:
        self.block = memoryview(mmap.mmap(-1, BLOCK_BYTES))

    def filled(self, header: memoryview, name: bytes = b"") -> memoryview:
        """The block with a header in front, and behind it what it is found by."""
        self.block[:HEADER_BYTES] = header
        self.block[HEADER_BYTES:] = name.ljust(BLOCK_BYTES - HEADER_BYTES, b"\0")
        return self.block

    def names(self, name: bytes) -> bool:
        """Whether a block that was read has this name behind its header."""
        return self.block[HEADER_BYTES : HEADER_BYTES + len(name)] == name

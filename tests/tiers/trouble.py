"""What can happen to a tier from outside: its process, its folder, its bytes.

Runs in the pytest process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tiers.rig import PAGE_BYTES
from tests.wire.process import ServerProcess, wait_until


def porters(server: ServerProcess) -> list[int]:
    """Process ids of the server's porters."""
    found = []
    for pid in server.children():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"server.porter" in words:
            found.append(pid)
    return found


def porter_of(server: ServerProcess) -> int:
    """The only porter, once it is there."""
    assert wait_until(lambda: len(porters(server)) == 1), server.log()
    return porters(server)[0]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still meanwhile, if it lives that long."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # its supervisor ended it


def values(folder: Path) -> list[Path]:
    """Files that hold values, or slots of them, in a tier's folder."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".mdb" and path.stat().st_size > PAGE_BYTES
    )


def value_of(folder: Path, key: bytes) -> Path:
    """The file of one value, where each has a file of its own."""
    (path,) = [path for path in values(folder) if key.hex() in str(path.relative_to(folder))]
    return path


def flip(path: Path, offset: int) -> None:
    """Turns one byte of a file over."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def disk_use(folder: Path) -> int:
    """Bytes that a folder takes on its file system, as ``du`` counts them."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            pass  # deleted meanwhile
    return total

"""The server of the connector under test, where the kit may stop, kill and start it.

Must not know: rules, engines, what the server does. Runs in the kit's main thread; the child is a
process group of its own and ends with the block that began it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol
from urllib.parse import urlsplit

_START_S: Final = 60.0
_END_S: Final = 10.0
_POLL_S: Final = 0.05
_CONNECT_S: Final = 2.0


class ServerError(Exception):
    """The server cannot be started or reached; the message says why."""


class Server(Protocol):
    """What rules do to a server; ``schedules.service.Service`` is one."""

    def kill(self) -> None:
        """``kill -9``."""

    def restart(self) -> None:
        """Ends it if it still runs, and starts it again at the same place."""

    def pause(self) -> None:
        """Stops it where it is (SIGSTOP)."""

    def resume(self) -> None:
        """Lets it go on (SIGCONT)."""


class CommandServer:
    """A server that a command starts."""

    def __init__(self, command: Sequence[str], url: str) -> None:
        """Starts it and waits until something listens at its address.

        Args:
            command: what to run.
            url: where it listens then: a path of a unix socket, or host and port.

        Raises:
            ServerError: it cannot be started, ended at once, or does not listen.
        """
        self._command = list(command)
        self._address = address_of(url)
        self._process = self._start()

    def kill(self) -> None:
        """``kill -9``, of all its processes."""
        self._signal(signal.SIGKILL)
        self._process.wait(_END_S)

    def restart(self) -> None:
        """Ends it if it still runs, and starts it again at the same place."""
        self.kill()
        self._process = self._start()

    def pause(self) -> None:
        """Stops it where it is (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"cannot start {self._command[0]!r}: {error}") from None
        end_s = time.monotonic() + _START_S
        while not _listens(self._address):
            if process.poll() is not None:
                raise ServerError(f"{self._command[0]!r} ended with code {process.returncode}")
            if time.monotonic() > end_s:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_END_S)
                raise ServerError(f"nothing listens at {self._address} after {_START_S:.0f} s")
            time.sleep(_POLL_S)
        return process


def address_of(url: str) -> str | tuple[str, int]:
    """Where a server listens.

    Args:
        url: as connectors take it.

    Returns:
        A path, or host and port.

    Raises:
        ServerError: it names neither.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.hostname and port:
        return parts.hostname, port
    if parts.path.startswith("/") and not parts.netloc:
        return parts.path
    raise ServerError(f"{url!r} names neither a socket's path nor host and port")


def await_server(url: str) -> None:
    """Sees that a server that others started is there.

    Args:
        url: where it listens.

    Raises:
        ServerError: nothing listens there, or it names no such place.
    """
    address = address_of(url)
    if not _listens(address):
        raise ServerError(
            f"nothing listens at {url}: start it, or give --server-command; without --server-url "
            "kvkeep's own connector gets one"
        )


def _listens(address: str | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


@contextmanager
def commanded(command: Sequence[str], url: str) -> Iterator[CommandServer]:
    """Starts a server by a command; it is gone afterwards.

    Args:
        command: what to run.
        url: where it listens then.

    Yields:
        The server, listening.

    Raises:
        ServerError: see ``CommandServer``.
    """
    server = CommandServer(command, url)
    try:
        yield server
    finally:
        server.resume()
        server.kill()

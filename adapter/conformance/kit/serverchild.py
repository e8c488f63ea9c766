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

START_S: Final = 60.0
_END_S: Final = 10.0
_POLL_S: Final = 0.05
_CONNECT_S: Final = 2.0
_GONE_S: Final = 5.0
"""Until what a killed server's processes held is closed."""


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
            ServerError: it cannot be started, ended at once, or does not listen; or another
                process listens there, which could not be stopped.
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
        if self._process.returncode is not None:
            return  # it was waited for: the number may be another's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _start(self) -> subprocess.Popen[bytes]:
        _await_nobody(self._address)
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"cannot start {self._command[0]!r}: {error}") from None
        end_s = time.monotonic() + START_S
        while not (is_there := _listens(self._address)) and process.poll() is None:
            if time.monotonic() > end_s:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_END_S)
                raise ServerError(f"nothing listens at {self._address} after {START_S:.0f} s")
            time.sleep(_POLL_S)
        if process.poll() is not None:
            but = ", and left another process behind that listens" if is_there else ""
            raise ServerError(
                f"{self._command[0]!r} ended with code {process.returncode}{but}: it has to stay"
            )
        return process


def _await_nobody(address: str | tuple[str, int]) -> None:
    """Sees that nobody else is taken for the server that is about to be started."""
    end_s = time.monotonic() + _GONE_S
    while _listens(address):
        if time.monotonic() > end_s:
            raise ServerError(
                f"somebody listens at {address} already: end that one, or leave out "
                "--server-command"
            )
        time.sleep(_POLL_S)


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
    try:
        with _connected(address) as probe:
            # A port that nobody listens at may be given to the very socket that looks.
            return isinstance(address, str) or probe.getsockname() != probe.getpeername()
    except OSError:
        return False


def _connected(address: str | tuple[str, int]) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, _CONNECT_S)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(_CONNECT_S)
        probe.connect(address)
    except OSError:
        probe.close()
        raise
    return probe


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

"""Where a server listens: the URL, its default, and the side socket that belongs to it.

Purpose: server and adapter derive the same endpoint from the same surroundings, and refuse a
wrong URL with the valid forms named. Sans-IO: environment, user and file system are arguments.
Must not know: sockets. Runs in: every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protocol.errors import ConfigError, ErrorCode

VALID_FORMS = "ipc:///absolute/path, tcp://127.0.0.1:PORT, tcp://localhost:PORT or tcp://[::1]:PORT"

SIDE_SUFFIX = ".side"
LOCK_SUFFIX = ".lock"

#: ``sun_path`` holds 108 bytes with its NUL; the side socket's name is the longest.
MAX_PATH_BYTES = 107 - len(SIDE_SUFFIX)

_FOLDER = "kvkeep"
_SOCKET = "kvkeep.sock"
SYSTEM_FOLDER = "/run/kvkeep"
_HOSTS = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "[::1]": "[::1]"}


@dataclass(frozen=True)
class Endpoint:
    """One parsed URL.

    Attributes:
        url: normal form, as ZMQ takes it.
        path: of the ipc socket; empty for tcp.
        host: loopback address, IPv6 in brackets; empty for ipc.
        port: 1..65535; 0 for ipc.
    """

    url: str
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_tcp(self) -> bool:
        """Whether clients learn the side socket's path from the server."""
        return self.port != 0

    def base_path(self, runtime_dir: str) -> str:
        """Path that side socket and lock file are named after.

        Args:
            runtime_dir: from ``runtime_dir``; used for tcp, which has no path of its own.

        Returns:
            Absolute path.
        """
        return f"{runtime_dir}/tcp-{self.port}" if self.is_tcp else self.path

    def side_path(self, runtime_dir: str) -> str:
        """Path of the side socket; a client of a tcp endpoint is told it by the server."""
        return self.base_path(runtime_dir) + SIDE_SUFFIX

    def lock_path(self, runtime_dir: str) -> str:
        """Path of the file that the endpoint's one server holds locked."""
        return self.base_path(runtime_dir) + LOCK_SUFFIX


def parse(url: str) -> Endpoint:
    """Reads a server URL.

    Args:
        url: as a person or a file gave it.

    Returns:
        The endpoint.

    Raises:
        ConfigError: INVALID_URL, saying what is wrong and which forms are valid.
    """
    text = url.strip()
    if not text:
        raise _invalid(url, "it is empty")
    scheme, found, rest = text.partition("://")
    if not found:
        raise _invalid(url, "it has no scheme")
    if scheme == "ipc":
        return _ipc(url, rest)
    if scheme == "tcp":
        return _tcp(url, rest)
    if scheme == "inproc":
        raise _invalid(
            url,
            "inproc is embedded mode: inproc:// without a name, for engines only",
        )
    raise _invalid(url, f"the scheme {scheme!r} is not known")


def _ipc(url: str, path: str) -> Endpoint:
    if not path.startswith("/"):
        raise _invalid(url, "an ipc path must be absolute")
    if path.endswith("/") or "\0" in path:
        raise _invalid(url, "the ipc path names no file")
    try:
        num_bytes = len(path.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise _invalid(url, "the ipc path is not valid text") from error
    if num_bytes > MAX_PATH_BYTES:
        raise _invalid(url, f"the ipc path has {num_bytes} bytes, at most {MAX_PATH_BYTES} fit")
    return Endpoint(f"ipc://{path}", path=path)


def _tcp(url: str, rest: str) -> Endpoint:
    host, found, port_text = rest.rpartition(":")
    if not found or (host.startswith("[") != host.endswith("]")):
        raise _invalid(url, "a tcp URL needs a host and a port")
    if ":" in host and not host.startswith("["):
        raise _invalid(url, "an IPv6 address goes in brackets")
    if host not in _HOSTS:
        raise _invalid(url, f"the host {host!r} is not this machine's loopback")
    is_number = port_text.isascii() and port_text.isdecimal() and len(port_text) <= 5
    port = int(port_text) if is_number else 0
    if not 1 <= port <= 65_535:
        raise _invalid(url, f"the port {port_text!r} is not within 1..65535")
    return Endpoint(f"tcp://{_HOSTS[host]}:{port}", host=_HOSTS[host], port=port)


def _invalid(url: str, why: str) -> ConfigError:
    shown = url if len(url) <= 120 else url[:117] + "..."
    return ConfigError(
        ErrorCode.INVALID_URL, f"server URL {shown!r}: {why}; valid are {VALID_FORMS}", url=shown
    )


def runtime_dir(environ: Mapping[str, str], uid: int, usable: Callable[[str], bool]) -> str:
    """Folder for sockets that nobody named otherwise.

    Args:
        environ: of the process; ``XDG_RUNTIME_DIR`` is read.
        uid: effective user.
        usable: whether a path is a folder in which this user may make files.

    Returns:
        ``$XDG_RUNTIME_DIR/kvkeep`` if that variable names a usable folder, else ``/run/kvkeep``
        if it is usable, else ``/tmp/kvkeep-<uid>``. Server and engines of one user with the same
        environment get the same answer.
    """
    own = environ.get("XDG_RUNTIME_DIR", "").rstrip("/")
    if own.startswith("/") and usable(own):
        return f"{own}/{_FOLDER}"
    if usable(SYSTEM_FOLDER):
        return SYSTEM_FOLDER
    return f"/tmp/kvkeep-{uid}"  # noqa: S108 - the server checks its owner and mode


def default_url(environ: Mapping[str, str], uid: int, usable: Callable[[str], bool]) -> str:
    """URL when nobody names one.

    Args:
        environ: see ``runtime_dir``.
        uid: see ``runtime_dir``.
        usable: see ``runtime_dir``.

    Returns:
        An ipc URL; ``parse`` still says when its path is too long for a socket.
    """
    return f"ipc://{runtime_dir(environ, uid, usable)}/{_SOCKET}"

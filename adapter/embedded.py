"""Embedded mode: the engine starts a private server as a child, and ends it.

``server_url: inproc://`` needs no service to be set up: rank 0 runs ``python -m server launch``
with an endpoint in a folder of this user's own, and the other ranks reach it there. The server's
settings are its own environment variables. Must not know: requests, how a link works. Runs in: a
daemon thread of rank 0, which lives as long as the child; ``python -m adapter.embedded`` is what
the child runs first.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import protocol
from adapter.journal import Journal
from protocol.endpoint import LOCK_SUFFIX, MAX_PATH_BYTES
from protocol.errors import ConfigError, ErrorCode

SETTINGS_PREFIX: Final = "TRTLLM_KVKEEP_INPROC_"
"""Only ``TRTLLM*`` variables reach spawned ranks (host contract §2): with this instead of
``KVKEEP_`` the server's settings do."""

_SERVER_PREFIX: Final = "KVKEEP_"
_OF_THE_MANAGER: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Of an engine that is a service itself: its private server must not speak for it."""

_NAME: Final = "kvkeep-inproc"
_SOCKET: Final = "s"
_SHARED: Final = "/dev/shm"
_ARENA_LOCK: Final = "lock"
_OWNED: Final = re.compile(_NAME + r"-([0-9]+)-p?(([0-9]+)-[0-9]+)(-[0-9a-f]{8})?")
"""What ``place_for`` names a folder: the user, then the process it follows from, with its start."""

_PR_SET_PDEATHSIG: Final = 1
_SETTLED_S: Final = 60.0
_PAUSE_FIRST_S, _PAUSE_LAST_S = 1.0, 30.0
_KILL_S: Final = 1.0
_CHECK_S: Final = 20.0
_EXIT_CONFIG: Final = 2
"""How the server's commands end that do not like a setting."""


@dataclass(frozen=True)
class Place:
    """Where a private server lives.

    Attributes:
        folder: of its socket.
        arena: folder of its extents; empty for the server's default.
        is_ours: whether this process starts it.
    """

    folder: str
    arena: str
    is_ours: bool

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"ipc://{self.folder}/{_SOCKET}"


def place_for(is_adp: bool, process_rank: int) -> Place:
    """Where the server of this engine is, or will be.

    Under attention data parallelism no rank hears of another, and yet all share one key space: the
    place then follows from the process that started them all. Otherwise only rank 0 asks.

    Args:
        is_adp: whether attention is data parallel.
        process_rank: of this process among the engine's.
    """
    base = tempfile.gettempdir()
    if len(base.encode()) > MAX_PATH_BYTES - 64:
        base = "/tmp"  # noqa: S108 - the folder is made for this user alone, the server checks it
    owner = f"p{_identity_of(os.getppid())}" if is_adp else f"{_identity_of(os.getpid())}"
    unique = "" if is_adp else f"-{os.urandom(4).hex()}"
    name = f"{_NAME}-{os.geteuid()}-{owner}{unique}"
    arena = f"{_SHARED}/{name}" if os.path.isdir(_SHARED) else ""
    return Place(f"{base}/{name}", arena, process_rank == 0)


def _identity_of(pid: int) -> str:
    """A process's number and start, which no later process has both."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{pid}-{fields[19]}"
    except (OSError, IndexError):
        return str(pid)


class PrivateServer:
    """The child and the thread that waits for it."""

    def __init__(self, place: Place, journal: Journal, environ: Mapping[str, str]) -> None:
        """Starts nothing.

        Args:
            place: ours.
            journal: takes what goes wrong.
            environ: of this process; holds the server's settings.
        """
        self._place = place
        self._journal = journal
        self._pid = os.getpid()
        self._given = environ
        self._environ = server_environ(environ)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        # The child asks to end with the thread that started it, so this one stays to the end.
        self._thread = threading.Thread(target=self._run, name="kvkeep-inproc", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        child = self._child
        return None if child is None or child.returncode is not None else child.pid

    def start(self) -> None:
        """Starts the thread; returns at once."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Ends the child and removes what is left of it, in bounded time. Idempotent.

        Args:
            timeout_s: longest wait for its own end, before it is killed.
        """
        if self._pid != os.getpid():
            return  # a fork of the engine: the child is not its own
        with self._lock:
            self._closing.set()
            child = self._child
        if child is not None and child.returncode is None:
            child.send_signal(signal.SIGTERM)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                child.kill()
                self._thread.join(_KILL_S)
        _clean(Path(self._place.folder))

    def _run(self) -> None:
        sweep(Path(self._place.folder).parent)
        sweep_arenas(Path(_SHARED))
        pause_s = _PAUSE_FIRST_S
        while not self._closing.is_set():
            begin_s = time.monotonic()
            try:
                code = self._serve()
            except OSError as error:
                code = -1
                self._journal.report("inproc_failures", f"the private server: {error}")
            if self._closing.is_set():
                return
            self._journal.report("inproc_exits", self._why_ended(code))
            pause_s = _PAUSE_FIRST_S if time.monotonic() - begin_s > _SETTLED_S else pause_s
            if code == _EXIT_CONFIG:  # what does not fit is not likely to fit a second later
                pause_s = _PAUSE_LAST_S
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_LAST_S)

    def _why_ended(self, code: int) -> str:
        """One line; names of settings only, as a value may be a secret."""
        if code != _EXIT_CONFIG:
            return f"the private server ended with code {code}; it is started again"
        names = sorted(name for name in self._given if name.startswith(SETTINGS_PREFIX))
        return (
            f"the private server ended with code {code}: its settings cannot be met on this "
            f"machine, its own line beside this one says why. Of the engine's environment it has "
            f"{', '.join(names) or 'none of them'}. This engine runs uncached; it is started again"
        )

    def _serve(self) -> int:
        """One child, from start to end."""
        os.makedirs(self._place.folder, mode=0o700, exist_ok=True)
        with self._lock:
            if self._closing.is_set():
                return 0
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "adapter.embedded", str(os.getpid()), *self._arguments()],
                # A folder of our own: nothing strange is imported from where the engine runs.
                cwd=self._place.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,  # a Ctrl-C is the engine's to act on
            )
        return child.wait()

    def _arguments(self) -> Sequence[str]:
        arguments = ["--endpoint", self._place.url]
        if self._place.arena and f"{_SERVER_PREFIX}ARENA_DIR" not in self._environ:
            arguments += ["--arena-dir", self._place.arena]
        # Nothing outlives the engine; no later server would look for it.
        arguments += ["--arena-at-exit", "remove"]
        return arguments


def server_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the server's settings, and where its code is.

    Args:
        environ: of this process.
    """
    found = dict(environ)
    for name in (f"{_SERVER_PREFIX}ENDPOINT", *_OF_THE_MANAGER):
        found.pop(name, None)
    for name, value in environ.items():
        if name.startswith(SETTINGS_PREFIX):
            found[_SERVER_PREFIX + name.removeprefix(SETTINGS_PREFIX)] = value
    home = str(Path(protocol.__file__).resolve().parents[1])
    others = environ.get("PYTHONPATH", "")
    found["PYTHONPATH"] = f"{home}{os.pathsep}{others}" if others else home
    return found


def check_settings(environ: Mapping[str, str]) -> None:
    """Has the server's own command say whether a private server could read its settings.

    Takes a fraction of a second where there are any. Whether they fit the machine is seen by the
    server alone, when it starts. Where the command itself cannot be run, nothing is said.

    Args:
        environ: of this process; holds the server's settings.

    Raises:
        ConfigError: INVALID_CONFIG; one is wrong or misspelt, named as it was written.
    """
    if not any(name.startswith((SETTINGS_PREFIX, _SERVER_PREFIX)) for name in environ):
        return
    command = (sys.executable, "-m", "server", "config", "--arena-at-exit", "remove")
    child = server_environ(environ)
    try:
        done = subprocess.run(
            [*command, "--endpoint", f"ipc:///{_NAME}/{_SOCKET}"],
            # As above: nothing strange is imported from where the engine runs.
            cwd=child["PYTHONPATH"].partition(os.pathsep)[0],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=child,
            timeout=_CHECK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return
    lines = done.stderr.strip().splitlines()
    if done.returncode == _EXIT_CONFIG and lines:
        line = lines[-1].removeprefix("kvkeep: ").removeprefix(f"{ErrorCode.INVALID_CONFIG.name}: ")
        raise ConfigError(ErrorCode.INVALID_CONFIG, _as_written(line, environ))


def _as_written(line: str, environ: Mapping[str, str]) -> str:
    """The server's line about a variable, with the name that the engine's environment has."""
    named = re.search(rf"\b{_SERVER_PREFIX}(\w+)", line)
    if named is None or SETTINGS_PREFIX + named[1] not in environ:
        return line
    return re.sub(rf"\b{_SERVER_PREFIX}(?=\w)", SETTINGS_PREFIX, line)


def sweep(base: Path, min_age_s: float = _SETTLED_S) -> int:
    """Removes what private servers left that were killed together with their engines.

    Args:
        base: folder in which their folders are.
        min_age_s: younger ones may belong to a server that is about to start.

    Returns:
        How many were removed.
    """
    count = 0
    for folder in base.glob(f"{_NAME}-{os.geteuid()}-*"):
        try:
            found = folder.lstat()
            is_old = time.time() - found.st_mtime >= min_age_s
            # The server of an engine that lives may be between its end and its next start.
            if found.st_uid == os.geteuid() and is_old and _is_orphan(folder.name) is not False:
                count += _clean(folder)
        except OSError:
            continue
    return count


def sweep_arenas(shared: Path, min_age_s: float = _SETTLED_S) -> int:
    """Removes extents of killed private servers whose folder nobody finds any more.

    Their engine may have had another temporary folder than this one, or a container's. Removed is
    only what is this user's, no longer new, named after a process that is gone (one of another
    container seems to be), and locked by no server, whichever container it runs in.

    Args:
        shared: folder of all arenas.
        min_age_s: younger ones may belong to a server that is about to lock its own.

    Returns:
        How many were removed.
    """
    count = 0
    for folder in shared.glob(f"{_NAME}-{os.geteuid()}-*"):
        try:
            found = folder.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            is_old = time.time() - found.st_mtime >= min_age_s
            if not is_ours or not is_old or _is_orphan(folder.name) is not True:
                continue
            if not _is_locked(folder / _ARENA_LOCK):
                shutil.rmtree(folder)
                count += 1
        except OSError:
            continue
    return count


def _is_orphan(name: str) -> bool | None:
    """Whether the process that a folder is named after is gone; None if it names none."""
    owner = _OWNED.fullmatch(name)
    return None if owner is None else _identity_of(int(owner[3])) != owner[2]


def _is_held(folder: Path) -> bool:
    """Whether a living server holds its endpoint locked."""
    return _is_locked(folder / f"{_SOCKET}{LOCK_SUFFIX}")


def _is_locked(path: Path) -> bool:
    """Whether a living process holds a lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _clean(folder: Path) -> bool:
    """Removes sockets and extents unless a server uses them; whether that was done."""
    if _is_held(folder):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(f"{_SHARED}/{folder.name}", ignore_errors=True)
    return True


def main(arguments: Sequence[str]) -> None:
    """In the child: becomes the server, which ends when the engine does.

    Args:
        arguments: the engine's process id, then the server's own.

    Raises:
        SystemExit: the engine is gone already.
    """
    parent_pid, *rest = arguments
    # The kernel sends it when the thread that started us ends, be it by kill -9.
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)) != 0:
        raise SystemExit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent_pid):
        raise SystemExit("the engine ended before its private server began")
    os.execv(sys.executable, [sys.executable, "-m", "server", "launch", *rest])


if __name__ == "__main__":
    main(sys.argv[1:])

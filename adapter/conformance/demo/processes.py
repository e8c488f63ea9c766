"""The processes of a run and their folders: all gone when it ends, however it ends.

Each child is a real process with a log file of its own; it is spoken to by lines on
its pipes, with a deadline, and ended by its process id. The kernel ends it too
should the demo itself be killed.

Must not know: what is shown. Runs in the demo's main thread, with one thread per
child that reads its lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_STOP_S: Final = 10.0
_SHARED_MEMORY: Final = Path("/dev/shm")
_FOREIGN_SETTINGS: Final = ("KVKEEP_", "TRTLLM_KVKEEP_", "LMCACHE_")
_OF_TESTS: Final = "KVKEEP_SIMULATED_CUDA"


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Stage:
    """Folders and children of one run.

    Attributes:
        folder: For sockets, models and logs; short enough for unix socket paths.
        arena_dir: Where servers put the cache: shared memory if there is room for it.
    """

    def __init__(self, folder: Path, arena_dir: Path) -> None:
        """Use the folders; see ``stage``."""
        self.folder = folder
        self.arena_dir = arena_dir
        self._children: list[Child] = []

    def adopt(self, child: Child) -> None:
        """See to it that a child is ended with the run."""
        self._children.append(child)

    def clear(self) -> None:
        """End every child, youngest first. Idempotent."""
        while self._children:
            self._children.pop().stop()

    def log_tails(self, num_lines: int) -> str:
        """The last lines of every log that is not empty.

        Args:
            num_lines: Per log.

        Returns:
            Text for whoever looks into a failure.
        """
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text("utf-8", "replace").rstrip().splitlines()[-num_lines:]
            if lines:
                parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)


@contextlib.contextmanager
def stage(arena_bytes: int) -> Iterator[Stage]:
    """Make the folders of a run; end its children and remove them afterwards.

    Args:
        arena_bytes: Room the arena needs.

    Yields:
        The stage.

    Raises:
        DemoError: If no folder has that much room.
    """
    prefix = f"kvkeep-demo-{os.getpid()}-"  # so that a leftover names who left it
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with tempfile.TemporaryDirectory(
            prefix=prefix, dir=_roomy_folder(arena_bytes), ignore_cleanup_errors=True
        ) as arena:
            made = Stage(folder, Path(arena) / "arena")
            try:
                yield made
            finally:
                made.clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Child:
    """One child process, its log, and its lines.

    Args:
        on: The run it belongs to.
        name: For messages and the name of its log.
        arguments: For the Python interpreter.
        environ: Beyond this process's environment.
    """

    def __init__(
        self,
        on: Stage,
        name: str,
        arguments: list[str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with (on.folder / f"{name}.log").open("ab") as log:
            self.started_s = time.monotonic()
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**own_environment(os.environ), **(environ or {})},
                start_new_session=True,  # Ctrl-C is for the demo, which then ends each in turn
                preexec_fn=_end_with_parent(),  # noqa: PLW1509 - one system call, no Python lock
            )
        on.adopt(self)
        # A daemon: it ends with the pipe, at the latest when the child is stopped.
        threading.Thread(
            target=self._read, args=(self.process.stdout,), name=f"read-{name}", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        """Process id; not given to another process before the child is waited for."""
        return self.process.pid

    def send(self, line: str) -> None:
        """Write one line to its standard input.

        Raises:
            DemoError: If it is gone.
        """
        try:
            if self.process.stdin is None:
                raise BrokenPipeError
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise DemoError(self._epitaph("takes no orders")) from None

    def read_line(self, timeout_s: float) -> str:
        """Wait for the next line of its standard output.

        Args:
            timeout_s: Longest wait in seconds.

        Raises:
            DemoError: If it ended or said nothing in time.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise DemoError(self._epitaph(f"said nothing for {timeout_s:.0f} s")) from None
        if line is None:
            raise DemoError(self._epitaph("ended"))
        return line

    def kill_9(self) -> bool:
        """``kill -9``, and wait until it is gone.

        Returns:
            Whether that is what ended it.
        """
        self.process.kill()
        return self.process.wait(_STOP_S) == -signal.SIGKILL

    def stop(self) -> int:
        """Ask it to end with SIGTERM, make it end after a while. Idempotent.

        Returns:
            Its exit code, negative for a signal.
        """
        process = self.process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        return process.returncode

    def _read(self, stdout: IO[str]) -> None:
        with stdout:
            for line in stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _epitaph(self, what: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        code = self.process.poll()
        state = "still running" if code is None else f"exit code {code}"
        return f"{self.name} (pid {self.pid}) {what} ({state})"


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without settings meant for the user's own server or engines.

    Args:
        environ: This process's environment.

    Returns:
        What children get.
    """
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_OF_TESTS) or not name.startswith(_FOREIGN_SETTINGS)
    }


def _roomy_folder(num_bytes: int) -> Path:
    folders = [_SHARED_MEMORY, Path(tempfile.gettempdir())]
    for folder in folders:
        usable = folder.is_dir() and os.access(folder, os.W_OK)
        if usable and shutil.disk_usage(folder).free > num_bytes:
            return folder
    places = " or ".join(str(folder) for folder in folders)
    raise DemoError(f"the demo needs {num_bytes >> 20} MiB free in {places}")


def _end_with_parent() -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl
    number = int(signal.SIGTERM)  # the server then removes what it made

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)

    return arrange

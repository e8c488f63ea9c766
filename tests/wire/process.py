"""A real server process for tests: launched, watched, ended; nothing of it stays.

Knows the command line and the start-up line, nothing of the inside. Runs in the pytest process.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 30.0
END_LIMIT_S = 15.0
_LINE = re.compile(
    r"kvkeep ready: endpoint (?P<url>\S+), side socket (?P<side>\S+), arena .* in (?P<arena>\S+) "
    r".*pid (?P<pid>\d+), started in (?P<started_s>[0-9.]+) s\n"
)


class ServerProcess:
    """``python -m server launch`` with an endpoint and an arena of its own.

    SIGTERM removes its arena unless ``--arena-at-exit`` is among the arguments; SIGKILL leaves it.

    Args:
        folder: short path for the sockets; kept by the caller, so a second server can use it.
        arena_dir: of the arena; below ``folder`` it would not lie in shared memory.
        arguments: further ones.
        url: instead of an ipc endpoint in ``folder``.
        environ: more of its environment.
        prefix: a command that becomes the server, such as ``unshare``.

    Attributes:
        line: the start-up line.
        url: endpoint.
        side_path: of the side socket.
        pid: of the main process.
        started_s: as the server says.
    """

    def __init__(
        self,
        folder: Path,
        arena_dir: Path,
        *arguments: str,
        url: str | None = None,
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.url = url or f"ipc://{folder}/s"
        self.arena_dir = arena_dir
        self.log_path = folder / "server.log"
        command = [*prefix, sys.executable, "-m", "server", "launch", "--endpoint", self.url]
        command += ["--arena-dir", str(arena_dir), *(arguments or ("--l1-size", "64M"))]
        if "--arena-at-exit" not in arguments:
            command += ["--arena-at-exit", "remove"]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )
        self.pid = self.process.pid
        self.line = self._first_line()
        match = _LINE.fullmatch(self.line)
        if match is None:
            self.kill()
            raise AssertionError(f"start-up line {self.line!r}; log: {self.log()}")
        self.side_path = match["side"]
        self.started_s = float(match["started_s"])

    def _first_line(self) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        poller = select.poll()
        poller.register(stdout, select.POLLIN)
        if not poller.poll(START_LIMIT_S * 1000):
            return ""
        return stdout.readline().decode()

    def log(self) -> str:
        """What the server wrote to stderr so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def children(self) -> list[int]:
        """Process ids of its children: the copiers."""
        path = Path(f"/proc/{self.pid}/task")
        found: list[int] = []
        for task in path.iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
        return found

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        code = self.process.wait(END_LIMIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()
        elif self.process.stdout is not None:
            self.process.stdout.close()


def rss_bytes(pid: int) -> int:
    """Resident memory of a process without shared mappings of the arena."""
    fields = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    values = dict(re.findall(r"(RssAnon|RssFile):\s+(\d+) kB", fields))
    return (int(values["RssAnon"]) + int(values["RssFile"])) * 1024


def cpu_s(pid: int) -> float:
    """CPU time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition: object, limit_s: float = 20.0, every_s: float = 0.01) -> bool:
    """Polls a callable until it is true or the time is over."""
    assert callable(condition)
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(every_s)
    return bool(condition())

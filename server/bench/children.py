"""Child processes of a run: servers, load generators, echoes; all gone when it ends.

Purpose: start each with the environment it needs, talk to it with a deadline, and end it, whatever
happened. Each asks the kernel for a signal should the benchmark itself be killed. Must not know:
what is measured. Runs in: the benchmark's main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NON_TEMPORAL = "glibc.cpu.x86_non_temporal_threshold=0x40000"
"""What the server gives its copier, so that plain copies are measured under the same terms."""

_PR_SET_PDEATHSIG = 1
_STOP_S = 10.0
_LINE_BYTES = 1 << 24
"""Longest line that is taken from a child."""

Progress = Callable[[int, int], None]
"""Told the steps that are done, and how many there are."""


class BenchError(Exception):
    """The run could not measure; one line says why."""


def end_with_parent() -> Callable[[], None]:
    """What a child runs before exec, so that it does not outlive a killed benchmark.

    Returns:
        A function that makes one system call and nothing else.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    sig = int(signal.SIGTERM)

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0)

    return arrange


@dataclass
class Workplace:
    """Folders and children of one run.

    Attributes:
        runtime_dir: for sockets and logs; its path is short enough for unix sockets.
        shm_dir: for arenas and scratch files, on the mount that arenas use.
    """

    runtime_dir: Path
    shm_dir: Path
    _children: list[Child] = field(default_factory=list)

    def adopt(self, child: Child) -> None:
        """Sees to it that a child is ended with the run."""
        self._children.append(child)

    def clear(self) -> None:
        """Ends every child, youngest first."""
        while self._children:
            self._children.pop().stop()


@contextlib.contextmanager
def workplace(shm: Path = Path("/dev/shm")) -> Iterator[Workplace]:
    """Makes the folders of a run and removes them, after its children, however it ends.

    Args:
        shm: mount of the arenas.

    Yields:
        The folders.
    """
    prefix = f"kvkeep-bench-{os.getpid()}-"  # so that a leftover names who left it
    runtime_dir = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        shm_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=shm))
        place = Workplace(runtime_dir, shm_dir)
        try:
            yield place
        finally:
            try:
                place.clear()
            finally:
                shutil.rmtree(shm_dir, ignore_errors=True)
    finally:
        shutil.rmtree(runtime_dir, ignore_errors=True)


class Child:
    """One child process whose stdout is read line by line, with a deadline."""

    def __init__(
        self,
        place: Workplace,
        name: str,
        arguments: list[str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it.

        Args:
            place: the run it belongs to.
            name: for messages and its log file.
            arguments: of the Python interpreter.
            environ: beyond this process's environment.

        Raises:
            OSError: it could not be started.
        """
        self.name = name
        self._log = place.runtime_dir / f"{name}.log"
        self._buffer = b""
        with self._log.open("ab") as log:
            self.started_ns = time.monotonic_ns()
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(environ or {})},
                # Ctrl-C is for the benchmark alone, which then ends its children in order.
                start_new_session=True,
                preexec_fn=end_with_parent(),  # noqa: PLW1509  one system call, no Python lock
            )
        place.adopt(self)

    @property
    def pid(self) -> int:
        """Its process id; not reused before ``stop``."""
        return self.process.pid

    def send(self, text: str) -> None:
        """Writes one line.

        Args:
            text: without line end.

        Raises:
            BenchError: it has exited.
        """
        stdin = self.process.stdin
        try:
            if stdin is None:
                raise BrokenPipeError
            stdin.write(text.encode() + b"\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):
            raise BenchError(self._epitaph("took no order")) from None

    def line(self, timeout_s: float) -> str:
        """Reads one line.

        Args:
            timeout_s: longest wait.

        Returns:
            The line, without its end.

        Raises:
            BenchError: it exited, or said nothing in time.
        """
        stdout = self.process.stdout
        if stdout is None:
            raise BenchError(f"{self.name} has no stdout")
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise BenchError(self._epitaph(f"said nothing for {timeout_s:.0f} s"))
                part = os.read(stdout.fileno(), 1 << 16)
                if not part or len(self._buffer) > _LINE_BYTES:
                    raise BenchError(self._epitaph("ended early"))
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")

    def stop(self) -> int | None:
        """Asks it to end, then makes it end. Idempotent.

        Returns:
            Its exit code.
        """
        process = self.process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return process.returncode

    def _epitaph(self, what: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        state = self.process.poll()
        ending = "still running" if state is None else f"exit code {state}"
        try:
            lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        last = f": {lines[-1]}" if lines else ""
        return f"{self.name} {what} ({ending}){last}"


class Generator(Child):
    """A load generator: takes orders, answers each with one result."""

    def __init__(self, place: Workplace, name: str) -> None:
        """Starts one with the copier's tunables."""
        super().__init__(
            place,
            name,
            ["-m", "adapter.conformance.loadgen"],
            {"GLIBC_TUNABLES": NON_TEMPORAL, "OPENBLAS_NUM_THREADS": "1"},
        )

    def begin(self, order: str, /, **arguments: Any) -> None:
        """Gives an order without waiting for its result.

        Args:
            order: its name.
            arguments: plain values.
        """
        self.send(json.dumps({"order": order, **arguments}))

    def result(self, timeout_s: float, progress: Progress | None = None) -> dict[str, Any]:
        """Waits for the result of the order given last.

        Args:
            timeout_s: longest silence; each sign of progress starts it anew.
            progress: told of each step.

        Returns:
            The result.

        Raises:
            BenchError: it failed, ended, or fell silent.
        """
        while True:
            said = self._said(timeout_s)
            if said["event"] == "progress" and progress is not None:
                progress(said["done"], said["of"])
            elif said["event"] == "done":
                found: dict[str, Any] = said["result"]
                return found

    def await_progress(self, timeout_s: float) -> None:
        """Waits until an order, such as a flood, says that it is under way.

        Args:
            timeout_s: longest wait.

        Raises:
            BenchError: it failed, ended, or fell silent.
        """
        if self._said(timeout_s)["event"] != "progress":
            raise BenchError(f"{self.name} ended before it was under way")

    def _said(self, timeout_s: float) -> dict[str, Any]:
        text = self.line(timeout_s)
        try:
            said: dict[str, Any] = json.loads(text)
            event = said["event"]
        except (ValueError, KeyError, TypeError):
            raise BenchError(f"{self.name} said {text[:200]!r}") from None
        if event == "failed":
            raise BenchError(f"{self.name}: {said['reason']}")
        return said

    def order(
        self, order: str, silence_s: float, progress: Progress | None = None, /, **arguments: Any
    ) -> dict[str, Any]:
        """Gives an order and waits for its result; see ``begin`` and ``result``."""
        self.begin(order, **arguments)
        return self.result(silence_s, progress)

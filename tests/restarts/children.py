"""Child processes of a run that talk in lines; every wait has an end.

Must not know: what they say. Runs in the conductor.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from tests.wire.process import ROOT

LIMIT_S = 60.0


class Child:
    """``python -m MODULE …`` that takes and gives lines.

    Attributes:
        pid: of it.
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.pid = self._process.pid
        self._rest = b""

    def tell(self, line: str) -> None:
        """Gives it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def hear(self, limit_s: float = LIMIT_S) -> str:
        """Its next line.

        Raises:
            TimeoutError: it said nothing in time.
            ConnectionError: it ended.
        """
        stdout: IO[bytes] | None = self._process.stdout
        assert stdout is not None
        poller = select.poll()
        poller.register(stdout, select.POLLIN)
        while b"\n" not in self._rest:
            if not poller.poll(limit_s * 1000):
                raise TimeoutError(f"child {self.pid} said nothing within {limit_s} s")
            said = stdout.read(65_536)
            if not said:
                raise ConnectionError(f"child {self.pid} ended")
            self._rest += said
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Ends it, whatever it is doing."""
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

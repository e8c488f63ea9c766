"""A child process that a test holds: killed at the end, whatever it is doing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

from tests.wire.process import ROOT

Self = TypeVar("Self", bound="HeldChild")


class HeldChild:
    """One, talked to by lines.

    Args:
        module: that it runs.
        arguments: of that.
        prefix: a command that becomes it.
    """

    def __init__(self, module: str, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def say(self, word: str) -> None:
        """Says a word and does not wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Its next line, or nothing if it died; pytest's time-out bounds it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and waits until it is gone. Idempotent."""
        self.process.kill()
        self.process.wait(10)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

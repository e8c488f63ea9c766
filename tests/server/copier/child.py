"""A copier as a process, on the other end of its socket. Ended with the test, whatever happens."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from server.copier.wire import (
    MAX_ANSWER_BYTES,
    Answer,
    Command,
    Kind,
    pack_command,
    unpack_answer,
)
from tests.wire.process import ROOT, is_alive, wait_until

Self = TypeVar("Self", bound="Child")


class Child:
    """Starts a copier and waits until it is ready.

    Args:
        command: of Python: ``-m`` and a module, or ``-c`` and a script.
        arguments: behind the socket's number and the parent's process id.
        environ: more of its environment.
        lowest: least number of the socket that it inherits.

    Attributes:
        ready: its first answer, whatever it says, without the device's bytes and the node.
        device_bytes: of that answer.
        numa_node: of that answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        environ: dict[str, str] | None = None,
        lowest: int = 0,
    ) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(15)
        with theirs:
            number = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, lowest)
        try:
            self.process = subprocess.Popen(
                [sys.executable, *command, str(number), str(os.getpid()), *arguments],
                pass_fds=(number,),
                cwd=ROOT,
                env={**os.environ, **(environ or {})},
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            os.close(number)
        first = self.answer()
        self.device_bytes = first.device_bytes
        self.numa_node = first.numa_node
        self.ready = replace(first, device_bytes=0, numa_node=-1)

    def answer(self) -> Answer:
        """The next one.

        Raises:
            EOFError: it has ended.
        """
        try:
            packet = self.channel.recv(MAX_ANSWER_BYTES)
        except ConnectionResetError:  # it was killed with a command unread
            packet = b""
        if not packet:
            raise EOFError(f"the copier ended with {self.process.wait(10)}")
        return unpack_answer(packet)

    def answers(self, num: int) -> dict[tuple[Kind, int], str | None]:
        """The next ones, in any order: errors by kind and number."""
        taken = [self.answer() for _ in range(num)]
        return {(answer.kind, answer.number): answer.error for answer in taken}

    def send(self, command: Command, fd: int = -1) -> None:
        """Sends a command, with a descriptor or none."""
        rights = []
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.channel.sendmsg([pack_command(command)], rights)

    def send_all(self, commands: Iterable[Command]) -> None:
        """Sends commands without descriptors."""
        for command in commands:
            self.send(command)

    def call(self, command: Command, fd: int = -1) -> Answer:
        """Sends a command and takes the next answer."""
        self.send(command, fd)
        return self.answer()

    def errors(self) -> str:
        """What it said, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def close(self) -> None:
        """Ends it as the server does."""
        self.channel.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_PARENT = """
import os, socket, subprocess, sys
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
module, *rest = sys.argv[1:]
copier = subprocess.Popen(
    [sys.executable, "-m", module, str(b.fileno()), str(os.getpid()), *rest],
    pass_fds=(b.fileno(),),
)
a.recv(300)
holder = subprocess.Popen(["sleep", "60"], pass_fds=(a.fileno(),))
print(copier.pid, holder.pid, flush=True)
sys.stdin.read()
"""


def check_it_dies_with_its_parent(module: str, *arguments: str) -> None:
    """Has a parent start a copier and be killed, while somebody holds the copier's socket."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid, holder = map(int, parent.stdout.readline().split())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert wait_until(lambda: not is_alive(pid))
    assert is_alive(holder)
    os.kill(holder, signal.SIGKILL)

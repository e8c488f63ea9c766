"""A porter as a process, on the other end of its socket. Ended with the test, whatever happens."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from types import TracebackType

from server.porter.wire import (
    MAX_ANSWER_BYTES,
    Answer,
    Command,
    Kind,
    pack_command,
    unpack_answer,
)
from server.tierspec import TierSpec, parse, to_json
from tests.wire.process import ROOT

MODULE = "tests.server.porter.child"


def spec(word: str, options: str = "") -> TierSpec:
    """Of a tier in memory that does what the word says."""
    return parse(f"disk:/{word}?size=1G{options}")


class PorterProcess:
    """Starts a porter and tells it its tier.

    Attributes:
        ready: its first answer, whatever it says.
    """

    def __init__(self, wanted: TierSpec) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(15)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.send(Command(Kind.CONFIGURE, 0, text=to_json(wanted)))
        self.ready = self.answer()

    def send(self, command: Command, fd: int = -1) -> None:
        rights = []
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.channel.sendmsg([pack_command(command)], rights)

    def answer(self) -> Answer:
        packet = self.channel.recv(MAX_ANSWER_BYTES)
        if not packet:
            raise EOFError(f"the porter ended with {self.process.wait(10)}")
        return unpack_answer(packet)

    def call(self, command: Command, fd: int = -1) -> Answer:
        self.send(command, fd)
        return self.answer()

    def __enter__(self) -> PorterProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

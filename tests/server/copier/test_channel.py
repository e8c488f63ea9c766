"""A copier's end of its socket: packets with and without descriptors, and its end."""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
import sys

import pytest

from server.copier.channel import receive, send
from server.copier.wire import Answer, Command, Kind, pack_command, unpack_answer
from tests.wire.process import ROOT


@pytest.fixture
def ends() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_commands_come_with_their_descriptor_until_the_end(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    with theirs:
        command = Command(Kind.MAP_POOL, 5, size_bytes=4096)
        fd = os.memfd_create("kvkeep-test")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        ours.sendmsg([pack_command(command)], rights)
        ours.send(pack_command(Command(Kind.UNMAP_POOL, 5)))
        received = receive(theirs)
        assert received is not None
        assert received[0] == command
        assert os.fstat(received[1]).st_ino == os.fstat(fd).st_ino
        assert not os.get_inheritable(received[1])
        assert receive(theirs) == (Command(Kind.UNMAP_POOL, 5), -1)
        os.close(received[1])
        os.close(fd)
        ours.close()
        assert receive(theirs) is None
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send(theirs, Answer(Kind.COPY, 1, None))


def test_answers_go_out_and_nonsense_is_refused(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    with ours, theirs:
        send(theirs, Answer(Kind.COPY, 7, "no", 9))
        assert unpack_answer(ours.recv(1000)) == Answer(Kind.COPY, 7, "no", 9)
        ours.send(b"nonsense")
        with pytest.raises(ValueError, match="command"):
            receive(theirs)


def test_a_copier_ignores_the_terminals_interrupt_and_refuses_another_parent() -> None:
    script = (
        "import os, signal, sys\n"
        "from server.copier.channel import begin\n"
        "begin(int(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    for parent, code in ((os.getpid(), 0), (1, 1)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(parent)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("ended before" in done.stderr) == bool(code)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN

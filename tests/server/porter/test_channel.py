"""The porter's end of its socket: packets whole, descriptors with them, the end as the end."""

import array
import os
import socket

from server.porter import channel, wire
from server.porter.wire import Answer, Command, Kind


def test_commands_come_with_their_descriptors_and_answers_go() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = Command(Kind.MAP_EXTENT, 5, size_bytes=8192)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours.fileno()]))]
        ours.sendmsg([wire.pack_command(command)], rights)
        received = channel.receive(theirs)
        assert received is not None
        assert received[0] == command
        assert os.fstat(received[1]).st_ino == os.fstat(ours.fileno()).st_ino
        os.close(received[1])
        ours.send(wire.pack_command(command))
        assert channel.receive(theirs) == (command, -1)
        channel.send(theirs, Answer(Kind.HEALTH, 9, error="ill"))
        assert wire.unpack_answer(ours.recv(1000)) == Answer(Kind.HEALTH, 9, error="ill")
        ours.shutdown(socket.SHUT_WR)
        assert channel.receive(theirs) is None

"""Connections to one path are dropped, and no other descriptor is touched."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.chaos.sockets import drop


def test_only_connections_to_the_path_are_dropped(short_dir: Path) -> None:
    pairs = {}
    for name, kind in (("a", socket.SOCK_STREAM), ("b", socket.SOCK_SEQPACKET)):
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind(str(short_dir / name))
        listener.listen(2)
        ours = socket.socket(socket.AF_UNIX, kind)
        ours.settimeout(5)
        ours.connect(str(short_dir / name))
        pairs[name] = (ours, listener.accept()[0], listener)
    assert drop(str(short_dir / "a")) == 1
    assert pairs["a"][0].recv(1) == b""
    assert pairs["a"][1].recv(1) == b""
    pairs["b"][1].send(b"x")
    assert pairs["b"][0].recv(1) == b"x"
    assert drop(str(short_dir / "b")) == 1
    assert drop(str(short_dir / "none")) == 0
    for sockets in pairs.values():
        for one in sockets:
            one.close()

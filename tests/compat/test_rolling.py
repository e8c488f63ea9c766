"""Server and adapters are upgraded one after the other, in either order, and back, under load.

The newer ones are this tree that pretends: see ``newer``. Every page that an engine loads is
compared with what its tokens say, so that one wrong byte ends its process, and the test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from protocol import codec, frames, side
from protocol.errors import ErrorCode
from protocol.messages import Done, Hello, HelloReply, Ping
from server import asking
from tests.adapter.enginerig import SIZE, write_model
from tests.compat import newer
from tests.compat.labour import BLOCKS
from tests.faults.held import HeldChild
from tests.server.heirs import ARGUMENTS
from tests.wire.client import SideClient, WireClient
from tests.wire.process import ServerProcess, wait_until

NEWER = (sys.executable, "-m", "tests.compat.newer")
WAIT_S = 40.0


class Worker:
    """An engine that works on in its own process."""

    def __init__(self, url: str, model: Path, is_newer: bool, seed: int) -> None:
        arguments = [url, str(model), str(seed)]
        self.child = HeldChild("tests.compat.labour", arguments, NEWER if is_newer else ())
        assert self.told()["minor"] == int(is_newer)

    def told(self) -> dict[str, int]:
        self.child.say("?")
        line = self.child.hear()
        assert line, "it ended: its stderr says why"
        found: dict[str, int] = json.loads(line)
        return found

    def loads(self, requests: int = 6) -> None:
        """Waits until it has loaded a good part of that many prompts from now on."""
        begun = self.told()
        wanted = requests * SIZE * BLOCKS // 2

        def is_done() -> bool:
            now = self.told()
            return now["offered"] - begun["offered"] >= wanted

        assert wait_until(is_done, WAIT_S, 0.1), (begun, self.told())

    def ends(self) -> None:
        assert self.child.process.stdin is not None
        self.child.process.stdin.close()
        assert self.child.process.wait(20) == 0


class Node:
    """One node: a server at a time, and engines."""

    def __init__(self, folder: Path, shared: Path, model: Path, stack: ExitStack) -> None:
        self.folder, self.shared, self.model, self.stack = folder, shared, model, stack
        self.num_workers = 0
        self.server = self.launch(is_newer=False)

    def launch(self, is_newer: bool) -> ServerProcess:
        keep = ("--arena-at-exit", "keep")
        prefix = NEWER if is_newer else ()
        made = ServerProcess(self.folder, self.shared / "a", *ARGUMENTS, *keep, prefix=prefix)
        return self.stack.enter_context(made)

    def replace_server(self, is_newer: bool) -> None:
        """While engines work on."""
        self.server.terminate()
        self.server = self.launch(is_newer)
        assert asking.stats(self.server.side_path, 10.0)["adopted_chunks"] > 0

    def worker(self, is_newer: bool) -> Worker:
        self.num_workers += 1
        made = Worker(self.server.url, self.model, is_newer, self.num_workers)
        self.stack.enter_context(made.child)
        return made


@pytest.fixture
def node(
    short_dir: Path, shm_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    with ExitStack() as stack:
        yield Node(short_dir, shm_dir, write_model(tmp_path / "model"), stack)


def test_server_first_then_adapters_and_back(node: Node) -> None:
    old = node.worker(is_newer=False)
    old.loads()
    node.replace_server(is_newer=True)
    old.loads()  # an older adapter at a newer server
    new = node.worker(is_newer=True)
    new.loads()
    old.ends()
    node.replace_server(is_newer=False)
    new.loads()
    new.ends()


def test_adapters_first_then_server_and_back(node: Node) -> None:
    old = node.worker(is_newer=False)
    old.loads()
    new = node.worker(is_newer=True)  # a newer adapter at an older server
    new.loads()
    old.ends()
    node.replace_server(is_newer=True)
    new.loads()
    older = node.worker(is_newer=False)
    older.loads()
    new.ends()
    older.ends()


class Talk:
    """One connection of a client of some minor, frame by frame."""

    def __init__(self, server: ServerProcess, minor: int) -> None:
        instance = minor.to_bytes(16, "big")
        self.side = SideClient(server.side_path)
        welcome = self.side.hello(instance)
        assert isinstance(welcome, side.Welcome)
        self.wire = WireClient(server.url, instance)
        hello = Hello(token=welcome.token, instance=instance, major=1, minor=minor)
        reply = self.say(frames.pack_request(hello, 1))
        assert isinstance(reply.body, HelloReply)
        self.hello = reply.body

    def say(self, frame: bytes) -> frames.Reply:
        self.wire.socket.send(frame)
        assert self.wire.socket.poll(10_000)
        return frames.unpack_reply(self.wire.socket.recv())

    def close(self) -> None:
        self.wire.close()
        self.side.close()


@pytest.mark.parametrize("is_newer", [False, True])
def test_the_smaller_minor_is_in_use_and_abilities_are_announced(
    node: Node, is_newer: bool
) -> None:
    if is_newer:
        node.server.terminate()
        node.server = node.launch(is_newer)
    serves = int(is_newer)
    for minor in (0, newer.MINOR, 65_535):
        talk = Talk(node.server, minor)
        assert (talk.hello.major, talk.hello.minor) == (1, min(minor, serves))
        assert (newer.ABILITY in talk.hello.capabilities) == is_newer
        scope = (talk.hello.epoch, talk.hello.arena)
        assert talk.say(frames.pack_request(Ping(), 2, *scope)).body == Done()
        frame = codec.bytes_from_struct((newer.OPERATION, 3, *scope, 0, {"wish": 1}))
        answer = _raw(talk, frame)
        if is_newer:
            assert answer == [newer.OPERATION, 3, 0, {}]
        else:
            assert answer[:3] == [newer.OPERATION, 3, int(ErrorCode.UNKNOWN_OPERATION)]
            assert answer[3]["detail"] == {"op": newer.OPERATION}
        talk.close()


def _raw(talk: Talk, frame: bytes) -> list[Any]:
    talk.wire.socket.send(frame)
    assert talk.wire.socket.poll(10_000)
    found: list[Any] = codec.plain_from_bytes(talk.wire.socket.recv())
    return found

"""An engine in a process of its own, to be stopped and killed.

``python -m tests.faults.childengine``: takes one action on the command line, says ``ready`` when
it stands where the test wants it, and goes on with each line of its standard input. Exit code 0
says that every byte was right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from protocol.layout import unpack_slots
from protocol.messages import Commit, Done, Unregister
from protocol.side import PoolAccepted
from tests.faults import bystander
from tests.faults.held import HeldChild
from tests.wire.client import Engine, expect, make_keys, make_namespace
from tests.wire.process import ServerProcess

NUM_CHUNKS = 16


def say(word: str) -> None:
    print(word, flush=True)


def lease(engine: Engine, keys: list[bytes]) -> None:
    """Leases what the test saved; leaves the lease unretrieved."""
    found = engine.lookup(keys)
    assert found.ready == len(keys), found
    say("ready")
    sys.stdin.readline()


def retrieve(engine: Engine, keys: list[bytes]) -> None:
    """Retrieves, waits as long as the test likes, and only then reads the bytes."""
    found = engine.lookup(keys)
    assert found.ready == len(keys), found
    slots = bystander.retrieve(engine, found.lease, found.ready)
    say("ready")
    sys.stdin.readline()
    data = bystander.read_slots(engine, slots)
    assert np.array_equal(data, expected_pages(engine)[: found.ready])
    say("right")
    sys.stdin.readline()


def expected_pages(engine: Engine) -> Any:
    rng = np.random.default_rng(77)
    return rng.integers(0, 256, engine.pages.shape, dtype=np.uint8)


def reserve(engine: Engine, keys: list[bytes]) -> None:
    """A STORE that was copied and is not committed until a line says how many chunks to."""
    bystander.fill(engine, 5)
    store, reply = engine.store(keys[:10], list(range(10)))
    assert reply.copied == 10, reply
    say("ready")
    count = int(sys.stdin.readline() or 0)
    if count:
        assert engine.commit(store, count).published == count
        say("committed")
    sys.stdin.readline()


def attend(engine: Engine, keys: list[bytes]) -> None:
    """Registers and does nothing further."""
    say("ready")
    sys.stdin.readline()


def save(engine: Engine, keys: list[bytes]) -> None:
    """Saves what the test names, as one rank of its engine."""
    bystander.fill(engine, 5)
    assert engine.save(keys, list(range(len(keys)))) == len(keys)
    say("ready")
    sys.stdin.readline()


def follow(engine: Engine, keys: list[bytes]) -> None:
    """Saves its share as one rank of two; reads it where a line says, as late as that comes."""
    bystander.fill(engine, 5)
    assert engine.save(keys, list(range(len(keys)))) == len(keys)
    say("ready")
    blob = bytes.fromhex(sys.stdin.readline())
    slots = unpack_slots(blob, len(keys), engine.namespace.num_shards)[:, engine.shard]
    data = bystander.read_slots(engine, slots)
    assert np.array_equal(data, engine.pages[: len(keys)])
    say("right")
    sys.stdin.readline()


def greet(engine: Engine, keys: list[bytes]) -> None:
    """Has said HELLO, and nothing else."""
    say("ready")
    sys.stdin.readline()


def offer(engine: Engine, keys: list[bytes]) -> None:
    """Has passed a pool that no registration names."""
    size_bytes = engine.num_pages * engine.page_bytes
    assert isinstance(engine.side.offer(b"p" * 16, engine.pool_fd, size_bytes), PoolAccepted)
    say("ready")
    sys.stdin.readline()


def enrol(engine: Engine, keys: list[bytes]) -> None:
    """Says ``ready`` and registers, so that it is killed while it waits for the answer."""
    say("ready")
    engine.register()
    sys.stdin.readline()


def store(engine: Engine, keys: list[bytes]) -> None:
    """A STORE of the whole pool that is on its way; prints how it was answered."""
    bystander.fill(engine, 5)
    many = make_keys(1005, engine.num_pages)
    seq = bystander.submit_store(engine, many, list(range(len(many))), 900)
    say("ready")
    reply = engine.wire.reply(seq, 60)
    say(reply.error.code.name if reply.error else f"copied {getattr(reply.body, 'copied', -1)}")
    sys.stdin.readline()


def commit(engine: Engine, keys: list[bytes]) -> None:
    """A COMMIT that was sent and whose answer nobody awaits."""
    bystander.fill(engine, 5)
    many = make_keys(1005, engine.num_pages)
    number, reply = engine.store(many, list(range(len(many))))
    assert reply.copied == len(many), reply
    engine.wire.submit(Commit(session=engine.session, store=number, count=reply.copied))
    say("ready")
    sys.stdin.readline()


def leave(engine: Engine, keys: list[bytes]) -> None:
    """An UNREGISTER, when a line says so, that waits for the end of a STORE's copy."""
    many = make_keys(1005, engine.num_pages)
    bystander.submit_store(engine, many, list(range(len(many))), 900)
    say("ready")
    sys.stdin.readline()
    seq = engine.wire.submit(Unregister(session=engine.session))
    expect(engine.wire.reply(seq, 60), Done)
    say("left")
    sys.stdin.readline()


STRANGERS = (greet, offer, enrol)
"""Act before they are registered."""

ACTIONS: dict[str, Callable[[Engine, list[bytes]], None]] = {
    action.__name__: action
    for action in (lease, retrieve, reserve, attend, save, follow, store, commit, leave, *STRANGERS)
}


def main(
    url: str,
    side_path: str,
    model: str,
    action: str,
    seed: str,
    instance: str = "",
    rank: str = "0",
    ranks: str = "1",
) -> None:
    space = make_namespace(model=model, num_ranks=int(ranks))
    engine = Engine(url, side_path, space, instance=bytes.fromhex(instance) or None, rank=int(rank))
    act = ACTIONS[action]
    if act not in STRANGERS:
        engine.register()
        engine.pump_while_waiting()
    act(engine, make_keys(int(seed), NUM_CHUNKS))


class ChildEngine(HeldChild):
    """The test's grip on one."""

    def __init__(
        self,
        server: ServerProcess,
        model: str,
        action: str,
        seed: int = 1,
        instance: bytes = b"",
        rank: int = 0,
        ranks: int = 1,
        prefix: Sequence[str] = (),
    ) -> None:
        arguments = [server.url, server.side_path, model, action, str(seed)]
        arguments += [instance.hex(), str(rank), str(ranks)]
        super().__init__("tests.faults.childengine", arguments, prefix)
        self.expect("ready")

    def expect(self, word: str) -> None:
        """Waits for a line."""
        assert self.hear() == word

    def tell(self, word: str = "") -> None:
        """Lets it go on."""
        self.say(word)


if __name__ == "__main__":
    main(*sys.argv[1:])

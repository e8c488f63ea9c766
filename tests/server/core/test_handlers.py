"""References in requests: every wrong one has its own typed answer and no effect."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode
from server.core.handlers import Handlers
from server.core.state import State
from tests.server.core.world import World, chain, config, namespace

KEY = chain("x", 1)[0]
NONE = b"?" * 16
WRONG: list[tuple[m.Request, ErrorCode]] = [
    (m.Lookup(session=99, request=1, start=0, keys=KEY), ErrorCode.UNKNOWN_SESSION),
    (m.Lookup(session=1, request=1, start=0, keys=KEY + b"x"), ErrorCode.COUNT_MISMATCH),
    (m.Lookup(session=1, request=1, start=2**31, keys=KEY), ErrorCode.INVALID_ARGUMENT),
    (m.Retrieve(session=1, lease=NONE, start=0, count=1), ErrorCode.UNKNOWN_LEASE),
    (m.Mapped(session=1, mapped=b"123"), ErrorCode.COUNT_MISMATCH),
    (m.Commit(session=1, store=5, count=1), ErrorCode.UNKNOWN_STORE),
    (m.Unregister(session=99), ErrorCode.UNKNOWN_SESSION),
    (m.Heartbeat(session=99), ErrorCode.UNKNOWN_SESSION),
    (m.EndSession(session=99, request=1), ErrorCode.UNKNOWN_SESSION),
    (m.Release(session=99, lease=NONE), ErrorCode.UNKNOWN_SESSION),
]


@pytest.mark.parametrize(
    ("body", "code"), WRONG, ids=lambda value: str(getattr(value, "op", value))
)
def test_wrong_references(body: m.Request, code: ErrorCode) -> None:
    world = World(config())
    a = world.engine()
    assert a.register(namespace()) == 1
    assert a.error(body) is code
    stats = world.core.stats()
    assert (stats["chunks"], stats["leases"], stats["stores"]) == (0, 0, 0)


def test_every_operation_has_a_handler() -> None:
    state: State = World(config()).core._state
    known = {kind.op for kind in Handlers(state)._table}
    assert known == set(m.Op) - {m.Op.HELLO}


def test_a_fault_of_ours_is_an_answer_and_the_loop_goes_on() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    world.core._handlers._table[m.EndSession] = broken
    seq = a.send(m.EndSession(session=1, request=1))
    for effect in world.core.take_effects():
        world.perform(effect)
    error = a.replies[seq].error
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    assert "a bug" in world.core.take_faults()[0]
    assert world.core.take_faults() == []
    assert isinstance(a.ask(m.Ping()), m.Done)

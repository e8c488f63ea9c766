"""References of operators."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode
from tests.server.core.world import World, chain, config, namespace

NONE = b"?" * 16
KEY = chain("x", 1)[0]


@pytest.mark.parametrize(
    "body",
    [
        m.Inspect(fingerprint=NONE, keys=KEY),
        m.Delete(fingerprint=NONE, keys=KEY),
        m.Pin(fingerprint=NONE, keys=KEY, ttl_s=1),
        m.Unpin(fingerprint=NONE, keys=KEY),
        m.Clear(fingerprint=NONE),
    ],
    ids=lambda body: body.op.name,
)
def test_an_unknown_namespace_is_refused(body: m.Request) -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    assert a.error(body) is ErrorCode.UNKNOWN_NAMESPACE


def test_clear_without_a_name_means_every_namespace() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace("other"))
    assert a.save(chain("x", 3)) == 3
    assert b.save(chain("y", 2)) == 2
    assert a.ask(m.Clear(fingerprint=b"")).chunks == 5

"""References and counts of STORE, COMMIT and CANCEL."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.layout import pack_pages
from server.core import handle_saves
from tests.server.core.world import World, chain, config, namespace


def test_a_commit_before_the_copy_ended_is_refused() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine()
    a.register(namespace())
    body = a.store_body(chain("x", 2))
    a.send(body)
    world.pump()
    commit = m.Commit(session=1, store=body.store, count=1)
    assert a.error(commit) is ErrorCode.INVALID_ARGUMENT
    world.finish(next(iter(world.jobs)))
    world.pump()
    too_many = m.Commit(session=1, store=body.store, count=3)
    assert a.error(too_many) is ErrorCode.INVALID_ARGUMENT
    assert a.ask(commit).published == 1


def test_bad_stores_are_refused_before_any_effect() -> None:
    world = World(config())
    a, b = world.engine("a", pages=8), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    good = a.store_body(chain("x", 4))

    def changed(**fields: object) -> m.Store:
        values = {name: getattr(good, name) for name in good.__struct_fields__}
        return m.Store(**{**values, **fields})

    assert a.error(changed(pages=pack_pages([0, 1, 2, 8]))) is ErrorCode.PAGE_OUT_OF_RANGE
    assert a.error(changed(pages=pack_pages([0, 1, 2, -1]))) is ErrorCode.PAGE_OUT_OF_RANGE
    assert a.error(changed(pages=pack_pages([0, 1, 2]))) is ErrorCode.COUNT_MISMATCH
    assert a.error(changed(keys=good.keys[:-1])) is ErrorCode.COUNT_MISMATCH
    assert a.error(changed(parent=b"p" * 16)) is ErrorCode.INVALID_ARGUMENT
    assert a.error(changed(start=1)) is ErrorCode.INVALID_ARGUMENT
    assert a.error(changed(shard=1)) is ErrorCode.INVALID_ARGUMENT
    assert a.error(changed(session=b.session)) is ErrorCode.UNKNOWN_SESSION
    assert a.error(changed(session=99)) is ErrorCode.UNKNOWN_SESSION
    assert world.core.stats()["slots_reserved"] == 0
    assert a.ask(good).copied == 4
    assert a.error(good) is ErrorCode.DUPLICATE


def test_a_cancel_of_an_unknown_store_is_done_at_once() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    assert isinstance(a.ask(m.Cancel(session=a.session, store=99)), m.Done)


def test_stores_that_nobody_ends_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_saves, "MAX_STORES_PER_SESSION", 3)
    world = World(config())
    a = world.engine()
    a.register(namespace())
    stores = [a.store_body(chain(str(number), 1)) for number in range(4)]
    for body in stores[:3]:
        assert a.ask(body).copied == 1
    assert a.error(stores[3]) is ErrorCode.BUSY
    a.ask(m.Cancel(session=a.session, store=stores[0].store))
    assert a.ask(stores[3]).copied == 1

"""Replies that say more than was asked, or than fits, and what is known while one is awaited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.link import Link
from adapter.offers import IterationBudget, OfferDesk
from adapter.promises import load_window
from adapter.requests import RequestTable
from protocol.keys import ReuseScope
from protocol.messages import Body, LookupReply, Op, Released
from tests.adapter.hostlike import facts
from tests.adapter.linking import joined_link
from tests.adapter.responder import ExtentFile, Responder, namespace, until
from tests.adapter.responder import geometry as extent_geometry
from tests.adapter.test_offers import GEO, LEASE, PROMPT, ask, releases, serve

FOREVER_NS = 1 << 60


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        file = ExtentFile(extent_geometry(1, namespace()), server.arena)
        server.give(file)
        until(lambda: link.extents.get(1) is not None)
        yield link
        file.close()


@pytest.fixture
def desk(link: Link) -> Iterator[OfferDesk]:
    made = OfferDesk(link, GEO, IterationBudget(1.0))
    yield made
    made.close()


def test_more_ready_chunks_than_were_asked_for_are_no_more_than_those(
    server: Responder, desk: OfferDesk
) -> None:
    serve(server, 12)
    answer, _ = ask(desk)
    assert answer.cached_chunks == 10
    assert answer.offer is not None
    assert answer.offer.end_tokens == 40


def test_another_number_of_shards_is_a_miss(server: Responder, desk: OfferDesk) -> None:
    serve(server, 7, num_shards=2)
    answer, _ = ask(desk)
    assert answer.offer is None
    assert "malformed" in answer.why
    until(lambda: server.bodies(Op.RELEASE))


def test_no_more_is_retrieved_than_one_reply_holds(
    server: Responder, desk: OfferDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.limits.MAX_SLOTS_PER_REPLY", 3)
    serve(server, 10)
    answer, _ = ask(desk, num_computed=8)
    assert answer.offer is not None
    assert (answer.offer.start_tokens, answer.offer.end_tokens) == (8, 20)
    (asked,) = server.bodies(Op.RETRIEVE)
    assert (asked.start, asked.count) == (2, 3)
    until(lambda: server.bodies(Op.END_SESSION))  # gives the rest of the lease back
    assert releases(server) == []


def test_a_reply_of_another_kind_is_a_miss(server: Responder, desk: OfferDesk) -> None:
    server.handlers[Op.LOOKUP] = lambda body: Released(chunks=1)
    answer, _ = ask(desk)
    assert (answer.offer, answer.cached_chunks) == (None, 0)


def test_an_incarnation_that_is_being_asked_may_still_make_an_offer(
    server: Responder, link: Link, desk: OfferDesk
) -> None:
    link.offers.lead()
    joined = link.joined
    assert joined is not None
    watch = link.offers.watch(joined.epoch, 0)
    seen: list[bool] = []

    def lookup(body: Any) -> Body:
        seen.append(link.offers.is_over(watch, 0, FOREVER_NS))
        return LookupReply(lease=LEASE, ready=0)

    assert link.offers.is_over(watch, 0, FOREVER_NS)
    server.handlers[Op.LOOKUP] = lookup
    ask(desk)
    assert seen == [False]
    assert not link.offers.is_over(watch, 0, FOREVER_NS)  # until the iteration is built
    link.offers.built(1, (), ())
    assert link.offers.is_over(watch, 0, FOREVER_NS)


@pytest.mark.parametrize("knows", [True, False])
def test_a_lookup_says_whose_it_is_where_the_server_can_tell(short_dir: Path, knows: bool) -> None:
    scope = ReuseScope(cache_salt="x")
    with Responder(short_dir) as server:
        server.capabilities = ("stats", "tenants") if knows else ("stats",)
        with joined_link(server.url) as link:
            desk = OfferDesk(link, GEO, IterationBudget(1.0))
            state = RequestTable(GEO).admit(facts(1, PROMPT, scope), 1, 0.0)
            window = load_window(len(PROMPT), 0, GEO)
            assert window is not None
            desk.ask(state, window)
            desk.close()
        (lookup,) = server.bodies(Op.LOOKUP)
        assert lookup.tenant == (scope.tenant() if knows else b"")

"""Asking the server: one budget, every failure a miss, every lease given back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.geometry import Geometry
from adapter.journal import Journal
from adapter.link import Link, LinkConfig
from adapter.offers import IterationBudget, OfferDesk
from adapter.promises import load_window
from adapter.requests import RequestTable
from adapter.requeststate import RequestState
from protocol.errors import ErrorCode, RequestError
from protocol.ids import InstanceId
from protocol.layout import SLOT_DTYPE
from protocol.messages import (
    Body,
    EndSession,
    Lookup,
    LookupReply,
    Op,
    QueryPrefetchStatus,
    Retrieve,
    RetrieveReply,
    StatsReply,
)
from protocol.namespace import LayerGroup, Namespace
from tests.adapter.hostlike import facts, geometry, tokens
from tests.adapter.linking import joined_link
from tests.adapter.responder import PAGE_BYTES, ExtentFile, Responder, namespace, until
from tests.adapter.responder import geometry as extent_geometry

GEO = geometry(num_pages=16, page_bytes=PAGE_BYTES)
LEASE = b"L" * 16
PROMPT = tokens(41)


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_budget_is_shared_and_refilled() -> None:  # P16
    clock = FakeClock()
    budget = IterationBudget(0.02, clock)
    for expected in (0.012, 0.004, 0.0):
        begin_s = budget.now_s()
        clock.now_s += 0.008
        budget.spend_since(begin_s)
        assert budget.left_s == pytest.approx(expected)
    budget.refill()
    assert budget.left_s == pytest.approx(0.02)
    budget.exhaust()
    assert budget.left_s == 0


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


@pytest.fixture
def budget() -> IterationBudget:
    return IterationBudget(1.0)


@pytest.fixture
def desk(link: Link, budget: IterationBudget) -> Iterator[OfferDesk]:
    made = OfferDesk(link, GEO, budget)
    yield made
    made.close()


def ask(desk: OfferDesk, num_computed: int = 0) -> tuple[Any, RequestState]:
    state = RequestTable(GEO).admit(facts(1, PROMPT), 1, 0.0)
    window = load_window(len(PROMPT), num_computed, GEO)
    assert window is not None
    return desk.ask(state, window), state


def serve(server: Responder, ready: int, extent: int = 1, num_shards: int = 1) -> None:
    """Makes the server hold ``ready`` chunks, all in one extent."""

    def lookup(body: Any) -> Body:
        return LookupReply(lease=LEASE if ready else b"", ready=ready)

    def retrieve(body: Any) -> Body:
        slots = np.zeros((body.count, num_shards), dtype=SLOT_DTYPE)
        slots["extent"] = extent
        slots["slot"] = np.arange(body.start, body.start + body.count)[:, None]
        return RetrieveReply(slots=slots.tobytes(), num_shards=num_shards)

    server.handlers[Op.LOOKUP] = lookup
    server.handlers[Op.RETRIEVE] = retrieve


@pytest.fixture
def extent(server: Responder, link: Link) -> Iterator[ExtentFile]:
    file = ExtentFile(extent_geometry(1, namespace()), server.arena)
    server.give(file)
    until(lambda: link.extents.get(1) is not None)
    yield file
    file.close()


@pytest.mark.usefixtures("extent")
def test_an_offer_covers_exactly_what_lies_beyond_the_match(
    server: Responder, desk: OfferDesk
) -> None:
    serve(server, 7)
    answer, state = ask(desk, 8)
    assert answer.cached_chunks == 7
    assert (answer.offer.start_tokens, answer.offer.end_tokens) == (8, 28)
    assert answer.offer.first_chunk == 2
    assert answer.offer.slots["slot"].ravel().tolist() == [2, 3, 4, 5, 6]
    (lookup,) = server.bodies(Op.LOOKUP)
    assert isinstance(lookup, Lookup)
    assert (lookup.start, lookup.keys) == (0, state.chunk_keys(0, 10, 1))
    (retrieve,) = server.bodies(Op.RETRIEVE)
    assert isinstance(retrieve, Retrieve)
    assert (retrieve.start, retrieve.count) == (2, 5)
    assert server.bodies(Op.RELEASE) == []


def test_nothing_beyond_the_match_ends_the_lease(server: Responder, desk: OfferDesk) -> None:
    serve(server, 2)
    answer, state = ask(desk, 8)
    assert answer.offer is None
    assert answer.cached_chunks == 2
    assert not state.asked
    until(lambda: [body.request for body in server.bodies(Op.END_SESSION)] == [state.key])


def test_slots_that_are_not_mapped_are_a_miss_and_given_back(
    server: Responder, desk: OfferDesk
) -> None:
    serve(server, 7, extent=99)
    answer, _ = ask(desk)
    assert answer.offer is None
    until(lambda: server.bodies(Op.RELEASE))
    (release,) = server.bodies(Op.RELEASE)
    assert (release.lease, release.count, release.all_readers) == (LEASE, 0, True)


def refuse(body: Any) -> Body:
    raise RequestError(ErrorCode.BUSY, "as the test wants it")


@pytest.mark.usefixtures("extent")
def test_a_refused_retrieve_is_a_miss_and_given_back(server: Responder, desk: OfferDesk) -> None:
    serve(server, 7)
    server.handlers[Op.RETRIEVE] = refuse
    answer, state = ask(desk)
    assert answer.offer is None
    assert "refused" in answer.why
    until(lambda: [body.all_readers for body in server.bodies(Op.RELEASE)] == [True])
    until(lambda: [body.request for body in server.bodies(Op.END_SESSION)] == [state.key])
    assert state.asked, "its end at the server is repeated when the request ends"


def test_a_malformed_slot_blob_is_a_miss_and_given_back(server: Responder, desk: OfferDesk) -> None:
    serve(server, 7)
    server.handlers[Op.RETRIEVE] = lambda _: RetrieveReply(slots=b"x" * 16, num_shards=1)
    answer, _ = ask(desk)
    assert "malformed" in answer.why
    until(lambda: server.bodies(Op.RELEASE))


def test_a_refusal_keeps_the_budget_a_silence_ends_it(server: Responder, link: Link) -> None:
    budget = IterationBudget(0.2)
    desk = OfferDesk(link, GEO, budget)
    try:
        server.handlers[Op.LOOKUP] = refuse
        assert "refused" in ask(desk)[0].why
        assert budget.left_s > 0
        server.mute.add(Op.LOOKUP)
        assert "no answer" in ask(desk)[0].why
        assert budget.left_s == 0
        answer, state = ask(desk)
        assert "budget" in answer.why
        assert not state.asked  # so nothing of it has to be ended
    finally:
        desk.close()


def test_a_connection_made_ahead_waits_for_extents_and_serves_another_thread(
    server: Responder, desk: OfferDesk
) -> None:
    unmapped = iter((2, 1, 0))
    server.handlers[Op.STATS] = lambda _: StatsReply(values={"extents_unmapped": next(unmapped)})
    assert desk.connect(5.0)
    assert next(unmapped, None) is None
    serve(server, 0)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask(desk)[0]))
    thread.start()
    thread.join(10)
    assert answers[0].why == "nothing beyond the device match"


def test_connecting_ahead_is_bounded(server: Responder, desk: OfferDesk) -> None:
    server.handlers[Op.STATS] = lambda _: StatsReply(values={"extents_unmapped": 1})
    assert not desk.connect(0.05)
    server.handlers[Op.STATS] = refuse
    assert not desk.connect(5.0)


def test_without_a_registration_nothing_is_sent(server: Responder, short_dir: Path) -> None:
    link = Link(LinkConfig(f"ipc://{short_dir}/nobody", InstanceId(b"i" * 16)))
    desk = OfferDesk(link, GEO, IterationBudget(1.0))
    assert ask(desk)[0].why == "not connected"
    assert not desk.connect(0.1)
    desk.close()
    link.close(1)


def test_closing_waits_for_a_question_and_leaves_one_that_lasts_alone(
    server: Responder, link: Link
) -> None:
    server.mute.add(Op.LOOKUP)
    desk = OfferDesk(link, GEO, IterationBudget(0.8))
    answers: list[Any] = []
    asker = threading.Thread(target=lambda: answers.append(ask(desk)[0]))
    asker.start()
    until(lambda: server.bodies(Op.LOOKUP))
    desk.close()  # an interpreter that ends cannot wait: the socket stays the asker's
    assert asker.is_alive()
    asker.join(5)
    assert "no answer" in answers[0].why
    desk.close()
    assert desk._channel is not None
    assert desk._channel._is_closed


def test_answers_of_the_next_server_are_not_taken_for_this_ones(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both number sessions, extents and generations from 1 on: slots of one would be loaded from
    # the extents of the other.
    with Responder(short_dir) as first, joined_link(first.url) as link:
        before = link.joined
        old = ExtentFile(extent_geometry(1, namespace()), first.arena, seed=1)
        first.give(old)
        until(lambda: link.extents.get(1))
        first.stop()
        with Responder(short_dir) as second:
            until(lambda: link.joined is not before and link.joined)
            until(lambda: not link.is_breaker_open)
            serve(second, ready=4)
            monkeypatch.setattr(Link, "joined", before)  # read just before the change
            desk = OfferDesk(link, GEO, IterationBudget(1.0))
            answer, _ = ask(desk)
            monkeypatch.undo()
            assert answer.offer is None
            assert "anew" in answer.why
            assert second.bodies(Op.LOOKUP) == []
            desk.close()
        old.close()


def windowed() -> tuple[Geometry, Namespace]:
    """A group of full attention and one with a window of two blocks."""
    geo = geometry(num_pages=16, windows=(0, 8), page_bytes=PAGE_BYTES)
    plain = namespace()
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    groups = tuple(
        LayerGroup(layers=(at,), page_bytes=PAGE_BYTES, window_tokens=window)
        for at, window in enumerate((0, 8))
    )
    return geo, Namespace(**{**fields, "tokens_per_block": 4, "groups": groups})


def test_offers_end_where_the_window_before_their_end_is_held(server: Responder) -> None:
    geo, owner = windowed()
    file = ExtentFile(extent_geometry(1, owner), server.arena)
    serve(server, 9, num_shards=2)
    holds_all = server.handlers[Op.RETRIEVE]

    def retrieve(body: Any) -> Body:
        reply: Any = holds_all(body)
        slots = np.frombuffer(reply.slots, dtype=SLOT_DTYPE).reshape(-1, 2).copy()
        slots[[3, 8], 1] = 0  # not held, or not any more
        return RetrieveReply(slots=slots.tobytes(), num_shards=2)

    server.handlers[Op.RETRIEVE] = retrieve
    with joined_link(server.url, owner) as link:
        server.give(file)
        until(lambda: link.extents.get(1) is not None)
        for is_divisible, end in ((False, 32), (True, 12)):
            desk = OfferDesk(link, geo, IterationBudget(1.0), is_divisible)
            answer, _ = ask(desk)
            desk.close()
            assert (answer.offer.start_tokens, answer.offer.end_tokens) == (0, end)
            assert len(answer.offer.slots) == end // 4
            until(lambda stop=end // 4: (stop, 9 - stop) in releases(server))  # type: ignore[misc]
    file.close()


def releases(server: Responder) -> list[tuple[int, int]]:
    return [(body.start, body.count) for body in server.bodies(Op.RELEASE)]


def serve_tier(server: Responder, at_once: int, later: int, is_final: bool = True) -> None:
    """Makes it hold ``at_once`` chunks in L1; a query finds ``later`` ones there."""
    serve(server, later)
    server.handlers[Op.LOOKUP] = lambda body: LookupReply(
        lease=LEASE if at_once else b"", ready=at_once, pending=10 - at_once, final=False
    )
    server.handlers[Op.QUERY_PREFETCH_STATUS] = lambda body: LookupReply(
        lease=LEASE if later else b"", ready=later, pending=10 - later, final=is_final
    )


def queries(server: Responder) -> list[QueryPrefetchStatus]:
    return server.bodies(Op.QUERY_PREFETCH_STATUS)


@pytest.fixture
def patient(link: Link) -> Iterator[tuple[OfferDesk, Journal]]:
    """A desk with 0.4 s for each iteration, of which 0.1 s are not for waiting."""
    journal = Journal(logging.getLogger("test"))
    made = OfferDesk(link, GEO, IterationBudget(0.4), journal=journal)
    yield made, journal
    made.close()


@pytest.mark.usefixtures("extent")
@pytest.mark.parametrize("is_final", [True, False])
@pytest.mark.parametrize("at_once", [0, 3])
def test_what_a_lower_tier_delivers_within_the_budget_is_offered(
    server: Responder, patient: tuple[OfferDesk, Journal], at_once: int, is_final: bool
) -> None:
    desk, journal = patient
    serve_tier(server, at_once, 7, is_final)
    answer, state = ask(desk)
    assert answer.offer.end_tokens == 28
    (query,) = queries(server)
    assert query.request == state.key
    assert 200 < query.wait_ms <= 300
    counts = journal.counters()
    assert counts["tier_waits"] == 1
    assert counts["tier_wait_chunks"] == 7 - at_once
    assert counts.get("tier_waits_cut", 0) == (not is_final)
    ended = until(lambda: server.bodies(Op.END_SESSION))
    assert ended == [EndSession(session=1, request=state.key)], "the server waits for it no longer"


@pytest.mark.usefixtures("extent")
def test_nothing_is_waited_for_that_the_prompt_cannot_use(
    server: Responder, patient: tuple[OfferDesk, Journal]
) -> None:
    desk, _ = patient
    serve_tier(server, 10, 10)  # 41 tokens: ten blocks, and one token to compute
    reply = LookupReply(lease=LEASE, ready=10, pending=2, final=False)
    server.handlers[Op.LOOKUP] = lambda body: reply
    assert ask(desk)[0].offer.end_tokens == 40
    serve(server, 7)  # final at once
    assert ask(desk)[0].offer.end_tokens == 28
    assert queries(server) == []


@pytest.mark.usefixtures("extent")
def test_requests_of_an_iteration_share_the_wait_and_l1_still_serves_the_last(
    server: Responder, link: Link
) -> None:  # P16
    budget, journal = IterationBudget(0.8), Journal(logging.getLogger("test"))
    desk = OfferDesk(link, GEO, budget, journal=journal)
    serve_tier(server, 3, 3, is_final=False)
    server.delay_s[Op.QUERY_PREFETCH_STATUS] = 0.65  # a wait that takes what is for waiting
    assert [ask(desk)[0].offer.end_tokens for _ in range(3)] == [12, 12, 12]
    assert 0 < budget.left_s < budget.kept_s
    assert len(queries(server)) == 1
    assert journal.counters()["tier_waits_skipped"] == 2
    desk.close()


@pytest.mark.usefixtures("extent")
def test_a_refused_wait_leaves_what_the_first_answer_has(
    server: Responder, patient: tuple[OfferDesk, Journal]
) -> None:
    serve_tier(server, 3, 7)
    server.handlers[Op.QUERY_PREFETCH_STATUS] = refuse
    assert ask(patient[0])[0].offer.end_tokens == 12
    assert patient[1].counters()["tier_waits_unanswered"] == 1


@pytest.mark.usefixtures("extent")
def test_a_wait_without_an_answer_in_time_is_a_miss_and_opens_no_breaker(
    server: Responder, link: Link
) -> None:
    budget = IterationBudget(0.4)
    desk = OfferDesk(link, GEO, budget)
    serve_tier(server, 3, 7)
    server.delay_s[Op.QUERY_PREFETCH_STATUS] = 0.5
    answer, state = ask(desk)
    assert answer.offer is None
    assert budget.left_s == 0
    until(lambda: [body.request for body in server.bodies(Op.END_SESSION)] == [state.key])
    assert not link.is_breaker_open
    server.delay_s.clear()
    budget.refill()
    assert ask(desk)[0].offer.end_tokens == 28, "the late answer is nobody's"
    assert not link.is_breaker_open
    desk.close()


@pytest.mark.usefixtures("extent")
def test_a_server_that_ends_during_a_wait_is_a_miss_at_once(
    server: Responder, link: Link, budget: IterationBudget
) -> None:
    serve_tier(server, 3, 7)
    server.mute.add(Op.QUERY_PREFETCH_STATUS)
    desk = OfferDesk(link, GEO, IterationBudget(30.0))
    answers: list[Any] = []
    asker = threading.Thread(target=lambda: answers.append(ask(desk)[0]))
    asker.start()
    until(lambda: queries(server))
    server.stop()
    asker.join(5)
    assert not asker.is_alive()
    assert answers[0].offer is None
    assert desk._budget.left_s == 0  # nobody else of this iteration waits for it
    desk.close()

"""Offers that are held: asked for once, cut to whole blocks, given back where they are not used."""

from typing import Any

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams
from adapter.conformance.host.v2.budgeting import Held, PrefixBudget


class Offering:
    """A connector's scheduler with one answer."""

    def __init__(self, count: int, is_async: bool = False) -> None:
        self.answer = (count, is_async)
        self.calls: list[tuple[Any, ...]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        self.calls.append(("query", num_computed))
        return self.answer

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        self.calls.append(("cancel", start, end))


def budget(connector: Offering) -> PrefixBudget:
    options = HostOptions(epoch="E4", layout="v2")
    return PrefixBudget(ConnectorPort(connector, object(), HookRecorder(), options), 4)


def request(num_tokens: int = 30, **changes: Any) -> HostRequest:
    params = RequestParams(tuple(range(num_tokens)), 4, **changes)
    return HostRequest(1, params, RequestHandle(1), None, tokens=list(params.prompt))


def test_an_offer_is_held_and_not_asked_for_again() -> None:
    connector, one = Offering(16, is_async=True), request()
    made = budget(connector)
    assert made.look(one, 4) == Held(4, 20, True)
    assert made.look(one, 4) == Held(4, 20, True, num_passes=1)
    assert connector.calls == [("query", 4)]
    assert (made.settle(one).end, made.num_held_over) == (20, 1)
    made.look(one, 0)  # once per allocation: this is another one
    assert [call[0] for call in connector.calls] == ["query", "query"]


def test_an_offer_is_cut_to_whole_blocks_and_a_token_is_left() -> None:
    connector = Offering(13)
    assert budget(connector).look(request(), 4).end == 16
    assert connector.calls == [("query", 4), ("cancel", 16, 17)]
    whole = Offering(32)
    assert budget(whole).look(request(32), 0).end == 28
    assert whole.calls[1:] == [("cancel", 28, 32)]
    small = Offering(3)
    assert budget(small).look(request(), 4).end == 4
    assert small.calls[1:] == [("cancel", 4, 7)]


def test_what_is_matched_meanwhile_returns_and_the_rest_is_kept() -> None:
    connector, one = Offering(16), request()
    made = budget(connector)
    made.look(one, 0)
    assert made.look(one, 8) == Held(8, 16, False, num_passes=1)
    assert made.look(one, 20) == Held(20, 20, False, num_passes=2)
    assert made.look(one, 24).end == 24
    assert connector.calls == [("query", 0), ("cancel", 0, 8), ("cancel", 8, 16)]
    made.give_back(one)  # nothing is left of it
    assert len(connector.calls) == 3


def test_a_match_that_is_lost_and_a_long_wait_ask_anew() -> None:
    connector, one = Offering(8), request()
    made = budget(connector)
    made.look(one, 8)
    assert made.look(one, 4) == Held(4, 12, False)
    assert connector.calls == [("query", 8), ("cancel", 8, 16), ("query", 4)]
    for _ in range(13):
        made.look(one, 4)
    assert connector.calls[3:] == [("cancel", 4, 12), ("query", 4)]


def test_half_an_offer_will_do_after_a_while() -> None:
    made = budget(Offering(0))
    assert made.shorter_end(Held(4, 24, False, num_passes=1)) is None
    assert made.shorter_end(Held(4, 24, False, num_passes=2)) == 12
    assert made.shorter_end(Held(4, 8, False, num_passes=9)) is None


def test_a_cancelled_request_gives_all_of_it_back() -> None:
    connector, one = Offering(8), request()
    made = budget(connector)
    made.give_back(one)
    made.look(one, 4)
    made.give_back(one)
    made.give_back(one)
    assert connector.calls == [("query", 4), ("cancel", 4, 12)]


def test_who_brings_its_own_kv_is_not_asked_about() -> None:
    connector = Offering(8)
    assert budget(connector).look(request(generation_only=True), 4).end == 4
    assert connector.calls == []

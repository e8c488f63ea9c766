"""Drafts: reports, accepted numbers, and pools that somebody else wrote into."""

import itertools
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.drafts import Drafter, Sample, accepted
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import ExecutorDiedError, HostError
from adapter.conformance.host.forward import TokenCell
from adapter.conformance.host.payload import PayloadModel
from adapter.conformance.host.requests import (
    HostRequest,
    Phase,
    RequestHandle,
    RequestParams,
)
from tests.adapter.conformance.host.lifecycles import WAIT_S, details_of, engine, prompt

pytestmark = pytest.mark.torch

NAMES = itertools.count()
OVERLAP = pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in turn"])


def generations(host: HostEngine) -> list[Any]:
    outputs = details_of(host, "build")
    return [data for output in outputs for data in output.cached_requests]


@pytest.mark.parametrize("num_drafts", [1, 3])
@pytest.mark.parametrize("cuda_graphs", [True, False])
@OVERLAP
def test_tokens_are_the_same_and_reports_say_how_many_are_computed(
    num_drafts: int, cuda_graphs: bool, overlap: bool
) -> None:
    asked = [prompt(20), prompt(33, 1), prompt(20, 2)]
    with engine() as plain:
        right = [plain.submit(tokens, 30).result(WAIT_S).tokens for tokens in asked]
    with engine(num_drafts=num_drafts, cuda_graphs=cuda_graphs, overlap=overlap) as host:
        handles = [host.submit(tokens, 30) for tokens in asked]
        assert [handle.result(WAIT_S).tokens for handle in handles] == right
        host.allocator.check_integrity()
        assert host.stats().num_available_blocks == 32
        assert host.stats().num_forwards < plain.stats().num_forwards
    counts = {data.num_scheduled_tokens for data in generations(host)}
    assert max(counts) == 1 + num_drafts
    # Positions say what is known; what was proposed is never reported as a token.
    reported = [data.new_tokens for data in generations(host) if data.request_id == 1]
    assert [token for tokens in reported for token in tokens] == right[0][: sum(map(len, reported))]
    # With overlap the token that is fed is not known yet: the first report names none.
    assert bool(reported[0]) is not overlap
    assert {len(tokens) for tokens in reported[1:]} <= set(range(1, 2 + num_drafts))


def test_the_executor_learns_late_how_many_drafts_were_accepted() -> None:
    with engine(num_drafts=3) as host:
        tokens = host.submit(prompt(20), 30).result(WAIT_S).tokens
    known, reports = 20, generations(host)
    for data in reports:
        known += len(data.new_tokens)
        assert data.computed_position == known - 1
        assert data.num_scheduled_tokens == 1 + 3 or known > 20 + 30 - 5
    # All but the samples of the last two forwards: one was under way, one was being launched.
    assert 20 + 30 - 2 * 4 <= known < 20 + len(tokens)
    assert {len(data.new_tokens) for data in reports[1:]} == {1, 2, 3, 4}


def test_a_page_that_only_rejected_drafts_reached_goes_to_others_unseen() -> None:
    held: dict[str, list[int]] = {"bound": [], "iteration": []}

    def look(point: str, ids: tuple[int, ...]) -> None:
        request = host._executor._scheduler.active.get(1)
        if point in held and request is not None:
            held[point].append(len(request.blocks))

    with engine(num_drafts=7, probe=look) as host:
        host.submit(prompt(20), 60).result(WAIT_S)
        host.allocator.check_integrity()
    pairs = list(zip(held["bound"], held["iteration"], strict=False))
    assert any(after < before for before, after in pairs)
    assert sum(len(data.new_block_ids) for data in generations(host)) == max(held["bound"]) - 3


def test_pages_are_there_for_drafts_that_may_not_come_true() -> None:
    with engine(num_drafts=7, overlap=False) as host:
        host.submit(prompt(20), 30).result(WAIT_S)
    held, short = 3, 0
    for data in generations(host):
        held += len(data.new_block_ids)
        short += held * 8 - (data.computed_position + 1) >= 8
        assert held * 8 >= data.computed_position + data.num_scheduled_tokens
    assert short  # a page that no accepted token has reached yet


@OVERLAP
def test_stop_tokens_count_within_accepted_drafts(overlap: bool) -> None:
    with engine() as plain:
        right = plain.submit(prompt(20), 30).result(WAIT_S).tokens
    for stop in range(5, 12):
        with engine(num_drafts=4, overlap=overlap) as host:
            result = host.submit(prompt(20), 30, stop_ids=[right[stop]]).result(WAIT_S)
            assert result.tokens == right[: right.index(right[stop]) + 1]


@OVERLAP
def test_a_right_connector_may_load_what_drafts_were_verified_over(overlap: bool) -> None:
    url = f"dict://drafts{next(NAMES)}"
    with engine(url, kind="Dict") as plain:
        right = plain.submit(prompt(40), 20).result(WAIT_S)
    with engine(url, kind="Dict", num_drafts=3, overlap=overlap) as host:
        result = host.submit(prompt(40), 20).result(WAIT_S)
    assert (result.tokens, result.num_loaded_tokens) == (right.tokens, 32)


@OVERLAP
def test_a_connector_that_saves_rejected_drafts_is_found_out(overlap: bool) -> None:
    url = f"dict://eager{next(NAMES)}"
    with engine(url, kind="Dict", num_drafts=4, overlap=overlap) as host:
        scheduler = host.connector.scheduler
        build = scheduler.build_connector_meta

        def eager(output: Any) -> Any:
            # It takes what is scheduled for what will be valid, and pads what it knows.
            metadata = build(output)
            for data in output.cached_requests:
                known = scheduler.known[data.request_id]
                end = data.computed_position + data.num_scheduled_tokens
                if len(known.blocks) * 8 >= end > len(known.tokens) and end % 8 == 0:
                    after = [*known.tokens, *later[len(known.tokens) : end]]
                    keys = scheduler.keys(type(known)(after, scope=known.scope), end)
                    metadata["saves"].append((known.blocks[end // 8 - 1], keys[-1]))
            return metadata

        with engine() as plain:
            later = prompt(20) + plain.submit(prompt(20), 90).result(WAIT_S).tokens
        scheduler.build_connector_meta = eager
        host.submit(prompt(20), 90).result(WAIT_S)
    with engine(url, kind="Dict") as reader, pytest.raises(ExecutorDiedError, match="Mismatch"):
        reader.submit(later, 1).result(WAIT_S)


def test_a_connector_that_goes_by_deltas_saves_pages_of_others_and_is_found_out() -> None:
    # Two requests whose last page comes and goes: it comes back as the other one's (host contract
    # §11, "page list can shrink unseen").
    url = f"dict://deltas{next(NAMES)}"
    asked = [prompt(20), prompt(20, 1)]
    with engine(url, kind="Dict", num_drafts=7) as host:
        handles = [host.submit(tokens, 60) for tokens in asked]
        answers = [handle.result(WAIT_S).tokens for handle in handles]
    with engine(url, kind="Dict") as reader:
        again = [reader.submit([*tokens, *answers.pop(0)], 1) for tokens in asked]
        with pytest.raises(ExecutorDiedError, match="Mismatch"):
            [handle.result(WAIT_S) for handle in again]


def sampled(request: HostRequest, *tokens: int) -> Sample:
    cells = tuple(TokenCell() for _ in tokens)
    for cell, token in zip(cells, tokens, strict=True):
        cell.token = token
    request.num_issued += 1
    request.num_unverified += len(tokens) - 1
    return Sample(request, (), cells)


def generating(num_tokens: int, request_id: int = 1, max_new_tokens: int = 50) -> HostRequest:
    tokens = prompt(num_tokens)
    params = RequestParams(tuple(tokens), max_new_tokens)
    request = HostRequest(request_id, params, RequestHandle(1), None, tokens=list(tokens))
    request.phase = Phase.GENERATION
    return request


def test_drafts_are_proposed_behind_samples_and_verified_by_the_next() -> None:
    drafter = Drafter(PayloadModel(8, num_layers=2), 4, 8, 3)
    request = generating(17)
    lane = drafter.lane(request)
    drafter.behind([sampled(request, 5)])()
    assert (lane.tokens[-1], len(lane.drafts), request.num_drafts) == (5, 3, 3)
    fed, right = list(lane.drafts), lane.num_right
    answer = [*fed[:right], *(9 for _ in range(4 - right))]
    sample = sampled(request, *answer)
    drafter.behind([sample])()
    assert (sample.drafts, sample.num_right, accepted(sample)) == (fed, right, right)
    assert lane.tokens[17:] == [5, *answer[: right + 1]]


def test_drafts_that_were_right_and_not_fed_are_proposed_again() -> None:
    drafter = Drafter(PayloadModel(8, num_layers=2), 16, 8, 3)
    for request_id in range(1, 20):  # some of them with three that are right
        request = generating(17, request_id)
        lane = drafter.lane(request)
        drafter.behind([sampled(request, 5)])()
        first = lane.drafts[: lane.num_right]
        drafter.behind([sampled(request, first[0] if first else 7)])()
        after = lane.drafts[: lane.num_right]
        shared = min(len(first) - 1, len(after))
        assert shared < 1 or after[:shared] == first[1 : 1 + shared]
        drafter.forget_others(())


def test_the_draft_pool_has_pages_for_some_and_takes_them_back() -> None:
    drafter = Drafter(PayloadModel(8, num_layers=2), 4, 8, 3)
    request, other = generating(18), generating(17, 2)
    drafter.behind([sampled(request, 5), sampled(other, 5)])()
    assert (request.num_drafts, other.num_drafts) == (3, 0)  # no page for it: it goes without
    assert drafter.num_proposed == 3
    drafter.forget_others([2])
    drafter.behind([sampled(other, 6)])()
    assert (other.num_drafts, drafter.lane(other).tokens[17:]) == (3, [5, 6])
    last = generating(1, 3, max_new_tokens=2)
    drafter.behind([sampled(last, 5)])()
    assert last.num_drafts == 0  # the next token is the last
    request.phase = Phase.ENDED
    drafter.behind([sampled(request, 5)])()
    assert drafter.num_proposed == 6


def test_another_number_of_accepted_drafts_than_planned_kills() -> None:
    for tokens, is_right in (([5, 9, 9], True), ([9, 6, 9], False), ([5, 6, 9], False)):
        sample = sampled(generating(18), *tokens)
        sample.drafts, sample.num_right = [5, 6], 1
        if is_right:
            assert accepted(sample) == 1
            continue
        with pytest.raises(HostError, match="were right"):
            accepted(sample)

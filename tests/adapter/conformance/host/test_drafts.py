"""Drafts: reports, accepted numbers, and pools that somebody else wrote into."""

import itertools
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.drafts import Drafter, accepted
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import ExecutorDiedError, HostError
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


def generations(host: HostEngine) -> list[Any]:
    outputs = details_of(host, "build")
    return [data for output in outputs for data in output.cached_requests]


@pytest.mark.parametrize("num_drafts", [1, 3])
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_tokens_are_the_same_and_reports_say_how_many_are_computed(
    num_drafts: int, cuda_graphs: bool
) -> None:
    asked = [prompt(20), prompt(33, 1), prompt(20, 2)]
    with engine() as plain:
        right = [plain.submit(tokens, 30).result(WAIT_S).tokens for tokens in asked]
    with engine(num_drafts=num_drafts, cuda_graphs=cuda_graphs) as host:
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
    assert {len(tokens) for tokens in reported} <= set(range(1, 2 + num_drafts))


def test_pages_are_there_for_drafts_that_may_not_come_true() -> None:
    with engine(num_drafts=7) as host:
        host.submit(prompt(20), 30).result(WAIT_S)
    held, short = 3, 0
    for data in generations(host):
        held += len(data.new_block_ids)
        short += held * 8 - (data.computed_position + 1) >= 8
        assert held * 8 >= data.computed_position + data.num_scheduled_tokens
    assert short  # a page that no accepted token has reached yet


def test_stop_tokens_count_within_accepted_drafts() -> None:
    with engine() as plain:
        right = plain.submit(prompt(20), 30).result(WAIT_S).tokens
    for stop in range(5, 12):
        with engine(num_drafts=4) as host:
            result = host.submit(prompt(20), 30, stop_ids=[right[stop]]).result(WAIT_S)
            assert result.tokens == right[: right.index(right[stop]) + 1]


def test_a_right_connector_may_load_what_drafts_were_verified_over() -> None:
    url = f"dict://drafts{next(NAMES)}"
    with engine(url, kind="Dict") as plain:
        right = plain.submit(prompt(40), 20).result(WAIT_S)
    with engine(url, kind="Dict", num_drafts=3) as host:
        result = host.submit(prompt(40), 20).result(WAIT_S)
    assert (result.tokens, result.num_loaded_tokens) == (right.tokens, 32)


def test_a_connector_that_saves_rejected_drafts_is_found_out() -> None:
    url = f"dict://eager{next(NAMES)}"
    with engine(url, kind="Dict", num_drafts=4) as host:
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


def generating(tokens: list[int], max_new_tokens: int = 50) -> HostRequest:
    params = RequestParams(tuple(tokens[:-1]), max_new_tokens)
    request = HostRequest(1, params, RequestHandle(1), None, tokens=list(tokens))
    request.phase = Phase.GENERATION
    return request


def test_the_draft_pool_is_filled_by_the_host_alone_and_given_back() -> None:
    model = PayloadModel(8, num_layers=2)
    drafter = Drafter(model, 4, 8, 3)
    request = generating(prompt(18))
    drafter.refresh([request])
    assert len(request.drafts) == 3
    before = list(request.drafts)
    drafter.refresh([request])  # still to be verified
    assert request.drafts == before
    assert drafter.num_proposed == 3
    other = generating(prompt(17))
    other.request_id = 2
    drafter.refresh([request, other])
    assert other.drafts == []  # no page for it: it goes without
    drafter.refresh([other])
    assert len(other.drafts) == 3
    last = generating(prompt(10), max_new_tokens=2)
    drafter.refresh([last])
    assert last.drafts == []  # the next token is the last


def test_another_number_of_accepted_drafts_than_planned_kills() -> None:
    request = generating(prompt(18))
    request.drafts, request.num_right_drafts = [5, 6], 1
    assert accepted(request, [5, 9, 9]) == 1
    for sampled in ([9, 6, 9], [5, 6, 9]):
        with pytest.raises(HostError, match="were right"):
            accepted(request, sampled)

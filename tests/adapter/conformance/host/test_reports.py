from typing import Any

import pytest

from adapter.conformance.host.reports import (
    Batch,
    DeltaReporter,
    RequestDataE2,
    RequestDataEarlyE2,
    Scheduled,
)
from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams
from adapter.trtllm_api import RequestData, RequestDataE1


def request(request_id: int, prompt: list[int]) -> HostRequest:
    made = RequestParams(tuple(prompt), 4, cache_salt="s")
    handle = RequestHandle(request_id)
    return HostRequest(request_id, made, handle, None, tokens=list(prompt))


def scheduled(state: HostRequest, computed: int, num_tokens: int) -> Scheduled:
    return Scheduled(
        state, computed, num_tokens, num_tokens, computed, is_context=True, first_forward=True
    )


def test_a_request_is_new_once_and_then_a_delta() -> None:
    reporter, state = DeltaReporter("E2"), request(1, [5, 6, 7])
    state.blocks = [9, 8]
    first = reporter.report(Batch(contexts=[scheduled(state, 0, 2)]))
    assert first.cached_requests == []
    assert first.new_requests == [
        RequestDataE2(1, [5, 6, 7], [9, 8], 0, 2, cache_salt="s"),
    ]
    second = reporter.report(Batch(contexts=[scheduled(state, 2, 1)]))
    assert second.new_requests == []
    assert second.cached_requests == [RequestDataE2(1, [], [], 2, 1, cache_salt="s")]
    state.tokens.append(3)
    state.blocks.append(4)
    third = reporter.report(Batch(generations=[scheduled(state, 3, 1)]))
    assert third.cached_requests == [RequestDataE2(1, [3], [4], 3, 1, cache_salt="s")]
    assert first.new_requests[0].new_tokens == [5, 6, 7]  # a copy, not the live list


def test_a_forgotten_request_is_new_again() -> None:
    reporter, state = DeltaReporter("E2"), request(1, [5])
    reporter.report(Batch(contexts=[scheduled(state, 0, 1)]))
    reporter.forget(1)
    reporter.forget(2)
    assert len(reporter.report(Batch(contexts=[scheduled(state, 0, 1)])).new_requests) == 1


def test_contexts_come_before_generations_and_loading_requests_not_at_all() -> None:
    reporter = DeltaReporter("E2")
    one, two, three = (request(i, [i]) for i in (1, 2, 3))
    batch = Batch([scheduled(two, 0, 1)], [scheduled(one, 0, 1)], loading=[three])
    output = reporter.report(batch)
    assert [data.request_id for data in output.new_requests] == [2, 1]


def test_the_first_epoch_reports_five_fields() -> None:
    output = DeltaReporter("E1").report(Batch(contexts=[scheduled(request(1, [5]), 0, 1)]))
    assert output.new_requests == [RequestDataE1(1, [5], [], 0, 1)]
    assert not hasattr(output.new_requests[0], "cache_salt")


@pytest.mark.parametrize("filled", ["contexts", "generations", "loading"])
def test_a_batch_is_true_if_anything_is_to_be_done(filled: str) -> None:
    assert not Batch()
    part = [request(1, [1])] if filled == "loading" else [scheduled(request(1, [1]), 0, 1)]
    assert Batch(**{filled: part})  # type: ignore[arg-type]


def of(reporter: DeltaReporter, state: HostRequest) -> Any:
    (data,) = reporter.report(Batch(contexts=[scheduled(state, 0, 1)])).new_requests
    return data


def test_each_epoch_has_its_own_fields() -> None:
    early = of(DeltaReporter("E2", salt_as_id=True), request(1, [5]))
    assert isinstance(early, RequestDataEarlyE2)
    assert isinstance(early.cache_salt_id, int)
    assert not hasattr(early, "cache_salt")
    late = of(DeltaReporter("E2"), request(1, [5]))
    assert not hasattr(late, "new_block_ids_by_layer_group")
    newest = of(DeltaReporter("E4"), request(1, [5]))
    assert isinstance(newest, RequestData)
    assert newest.new_block_ids_by_layer_group == []


def test_the_hosts_own_hashes_come_once_per_full_block_and_chain() -> None:
    reporter, state = DeltaReporter("E2", tokens_per_block=2), request(1, [5, 6, 5, 6, 7])
    hashes = of(reporter, state).block_hashes
    assert len(set(hashes)) == 2
    state.tokens.append(8)
    (data,) = reporter.report(Batch(generations=[scheduled(state, 5, 1)])).cached_requests
    assert len(data.block_hashes) == 1
    assert of(DeltaReporter("E2", tokens_per_block=2), request(2, [5, 6, 9])).block_hashes == [
        hashes[0]
    ]
    assert of(DeltaReporter("E3", is_v2=True, tokens_per_block=2), state).block_hashes == []


def test_priorities_stand_beside_new_pages_where_retention_is_configured() -> None:
    params = RequestParams((5, 6), 1, retention_priority=35)
    state = HostRequest(1, params, RequestHandle(1), None, tokens=[5, 6], tables=[[3, 4]])
    assert of(DeltaReporter("E2"), state).priorities == [35, 35]
    assert of(DeltaReporter("E3", is_v2=True), state).priorities is None
    assert of(DeltaReporter("E2"), request(2, [5])).priorities is None


def test_pages_are_reported_per_layer_group_and_mirrored_where_there_is_one() -> None:
    one = request(1, [5])
    one.tables = [[3]]
    data = of(DeltaReporter("E3", is_v2=True), one)
    assert (data.new_block_ids, data.new_block_ids_by_layer_group) == ([3], [[3]])
    reporter, two = DeltaReporter("E3", is_v2=True), request(2, [5])
    two.tables = [[3, 4], [-1, 7]]
    data = of(reporter, two)
    assert (data.new_block_ids, data.new_block_ids_by_layer_group) == ([], [[3, 4], [-1, 7]])
    two.tables[0].append(5)
    two.tables[1].append(8)
    (more,) = reporter.report(Batch(contexts=[scheduled(two, 1, 1)])).cached_requests
    assert more.new_block_ids_by_layer_group == [[5], [8]]


def test_late_epochs_say_whose_pages_they_are() -> None:
    assert DeltaReporter("E3", adp_rank=2).report(Batch()).attention_dp_rank == 2
    assert DeltaReporter("E3").report(Batch()).attention_dp_rank is None


def test_dummies_are_forwarded_and_not_reported() -> None:
    batch = Batch(dummies=[[[3]]])
    assert batch
    assert batch.can_forward
    output = DeltaReporter("E3").report(batch)
    assert (output.new_requests, output.cached_requests) == ([], [])
    assert not Batch(loading=[request(1, [1])]).can_forward

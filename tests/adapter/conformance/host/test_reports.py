import pytest

from adapter.conformance.host.reports import Batch, DeltaReporter, Scheduled
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
        RequestData(1, [5, 6, 7], [9, 8], 0, 2, cache_salt="s"),
    ]
    second = reporter.report(Batch(contexts=[scheduled(state, 2, 1)]))
    assert second.new_requests == []
    assert second.cached_requests == [RequestData(1, [], [], 2, 1, cache_salt="s")]
    state.tokens.append(3)
    state.blocks.append(4)
    third = reporter.report(Batch(generations=[scheduled(state, 3, 1)]))
    assert third.cached_requests == [RequestData(1, [3], [4], 3, 1, cache_salt="s")]
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

import pytest

from adapter.conformance.host.errors import HostError, RequestCancelledError
from adapter.conformance.host.requests import (
    HostRequest,
    HostResult,
    LlmRequestView,
    Multimodal,
    RequestHandle,
    RequestParams,
)
from adapter.trtllm_api import cache_salt_of, multimodal_items_of

RESULT = HostResult([1], [], 0, 0, 1, "length")


def request(**params: object) -> HostRequest:
    made = RequestParams((1, 2, 3), 6, **params)  # type: ignore[arg-type]
    return HostRequest(7, made, RequestHandle(7), None, tokens=[1, 2, 3])


def test_a_handle_ends_once() -> None:
    handle = RequestHandle(7)
    assert not handle.done()
    with pytest.raises(TimeoutError, match="request 7"):
        handle.result(0)
    handle.resolve(RESULT)
    handle.fail(RequestCancelledError("late"))
    assert handle.result(0) is RESULT
    failed = RequestHandle(8)
    failed.fail(RequestCancelledError("gone"))
    failed.resolve(RESULT)
    with pytest.raises(HostError, match="gone"):
        failed.result(0)


def test_pages_to_completion_leave_out_the_last_token() -> None:
    assert request().blocks_needed(4) == 2
    assert request().blocks_needed(8) == 1


def test_the_view_has_what_the_contract_names_and_no_more() -> None:
    state = request(cache_salt="s", lora_task_id=3)
    view = LlmRequestView(state, salt_as_id=False)
    assert {name for name in vars(view) if not name.startswith("_")} == {
        "request_id",
        "lora_task_id",
        "cache_salt",
        "multimodal_hashes",
        "multimodal_positions",
        "multimodal_lengths",
        "is_generation_only_request",
        "kv_cache_retention_config",
    }
    assert (view.request_id, view.lora_task_id, cache_salt_of(view)) == (7, 3, "s")
    tokens = view.get_tokens(0)
    tokens.append(9)
    state.tokens.append(4)
    assert view.get_tokens(0) == [1, 2, 3, 4]
    with pytest.raises(IndexError):
        view.get_tokens(1)


def test_an_early_host_has_an_integer_salt() -> None:
    view = LlmRequestView(request(cache_salt="s"), salt_as_id=True)
    assert not hasattr(view, "cache_salt")
    assert isinstance(cache_salt_of(view), int)
    other = LlmRequestView(request(cache_salt="t"), salt_as_id=True)
    assert cache_salt_of(other) != cache_salt_of(view)
    assert cache_salt_of(LlmRequestView(request(), salt_as_id=True)) is None


def test_media_reach_the_view() -> None:
    hashed = Multimodal(((1, 2, 3, 4, 5, 6, 7, -8),), (1,), (2,))
    items = multimodal_items_of(LlmRequestView(request(multimodal=hashed), salt_as_id=False))
    assert items is not None
    assert items.has_hashes
    bare = Multimodal(None, (1,), (2,))
    items = multimodal_items_of(LlmRequestView(request(multimodal=bare), salt_as_id=False))
    assert items is not None
    assert not items.has_hashes
    assert multimodal_items_of(LlmRequestView(request(), salt_as_id=False)) is None


def test_reuse_scopes_differ_by_each_part() -> None:
    media = Multimodal(((1,) * 8,), (0,), (1,))
    scopes = {
        request(**params).params.reuse_scope()
        for params in ({}, {"cache_salt": "a"}, {"lora_task_id": 1}, {"multimodal": media})
    }
    assert len(scopes) == 4

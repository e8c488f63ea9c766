import inspect
from abc import ABC

import pytest

from adapter.trtllm_fallback import (
    FallbackRequestData,
    FallbackScheduler,
    FallbackSchedulerOutput,
    FallbackWorker,
    RequestDataE1,
)


class Scheduler(FallbackScheduler):
    def get_num_new_matched_tokens(
        self, request: object, num_computed_tokens: int
    ) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: object, block_ids: list[int]) -> None: ...

    def build_connector_meta(self, scheduler_output: object) -> object:
        return None

    def request_finished(self, request: object, cache_block_ids: list[int]) -> bool:
        return False


class Worker(FallbackWorker):
    def register_kv_caches(self, kv_cache_tensor: object) -> None: ...
    def start_load_kv(self, stream: object) -> None: ...
    def wait_for_layer_load(self, layer_idx: int, stream: object) -> None: ...
    def save_kv_layer(self, layer_idx: int, stream: object) -> None: ...
    def wait_for_save(self, stream: object) -> None: ...
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        return [], []


def test_the_bases_keep_the_arguments_and_the_metadata() -> None:
    arguments = object()
    worker = Worker(arguments)
    assert worker._llm_args is arguments
    assert Scheduler(arguments)._llm_args is arguments
    assert worker.get_connector_meta() is None
    worker.bind_connector_meta({"load": 1})
    assert worker.get_connector_meta() == {"load": 1}
    worker._clear_connector_meta()
    assert worker.get_connector_meta() is None
    assert worker.register_forward_pass_callable() is None
    Scheduler(arguments).wait_for_initialization()


@pytest.mark.parametrize(("base", "num_mandatory"), [(FallbackScheduler, 4), (FallbackWorker, 6)])
def test_every_mandatory_method_is_abstract(base: type[ABC], num_mandatory: int) -> None:
    with pytest.raises(TypeError, match="abstract"):
        base(None)  # type: ignore[call-arg]
    assert inspect.isabstract(base)
    assert len(base.__abstractmethods__) == num_mandatory


def test_reports_have_the_fields_of_their_epoch() -> None:
    five = ["request_id", "new_tokens", "new_block_ids"]
    five += ["computed_position", "num_scheduled_tokens"]
    assert list(RequestDataE1.__dataclass_fields__) == five
    assert list(FallbackRequestData.__dataclass_fields__)[:5] == five
    late = FallbackRequestData(1, [2], [3], 0, 1)
    assert (late.block_hashes, late.priorities, late.cache_salt) == ([], None, None)
    assert late.new_block_ids_by_layer_group == []
    assert late.block_hashes is not FallbackRequestData(1, [2], [3], 0, 1).block_hashes
    assert FallbackSchedulerOutput().new_requests == FallbackSchedulerOutput().cached_requests == []


def test_one_layer_group_is_folded_to_the_flat_form_and_several_are_not() -> None:
    seen: list[object] = []

    class Noting(Scheduler):
        def update_state_after_alloc(self, request: object, block_ids: list[int]) -> None:
            seen.append(block_ids)

        def request_finished(self, request: object, cache_block_ids: list[int]) -> bool:
            seen.append(cache_block_ids)
            return True

    scheduler = Noting(None)
    scheduler.update_state_after_alloc_by_layer_group(None, [[3, 4]])
    assert scheduler.request_finished_by_layer_group(None, [])
    assert seen == [[3, 4], []]
    with pytest.raises(NotImplementedError, match="2 layer groups"):
        scheduler.update_state_after_alloc_by_layer_group(None, [[1], [2]])


def test_a_layout_that_one_tensor_describes_is_folded_to_it() -> None:
    class Layout:
        def as_single_pool_tensor(self) -> str:
            return "tensor"

    seen: list[object] = []

    class Noting(Worker):
        def register_kv_caches(self, kv_cache_tensor: object) -> None:
            seen.append(kv_cache_tensor)

    Noting(None).register_kv_cache_layout(Layout())
    assert seen == ["tensor"]

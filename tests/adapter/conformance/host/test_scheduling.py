from typing import Any

import pytest

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostRequest, Phase, RequestHandle, RequestParams
from adapter.conformance.host.scheduling import BatchScheduler


class Answering:
    """A connector's scheduler that offers what it is told and notes the order of calls."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, bool]] = {}
        self.calls: list[tuple[str, int]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        self.calls.append(("query", request.request_id))
        return self.answers.get(request.request_id, (0, False))

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        self.calls.append(("alloc", request.request_id))


class Setting:
    def __init__(self, *, num_blocks: int = 20, reuse: bool = True, **limits: Any) -> None:
        self.connector = Answering()
        options = HostOptions(
            epoch=limits.get("epoch", "E2"), late_trim=limits.get("late_trim", False)
        )
        self.pages = BlockAllocator(num_blocks, 4, reuse=reuse, partial=True)
        self.copies: list[tuple[int, int]] = []
        self.scheduler = BatchScheduler(
            self.pages,
            ConnectorPort(self.connector, object(), HookRecorder(), options),
            options,
            max_num_tokens=limits.get("max_num_tokens", 64),
            max_batch_size=limits.get("max_batch_size", 8),
            reuse=reuse,
            copy_page=lambda source, target: self.copies.append((source, target)),
        )

    def add(self, request_id: int, num_tokens: int, max_new_tokens: int = 2) -> HostRequest:
        prompt = tuple(request_id * 1000 + i for i in range(num_tokens))
        params = RequestParams(prompt, max_new_tokens)
        handle = RequestHandle(request_id)
        request = HostRequest(request_id, params, handle, None, tokens=list(prompt))
        self.scheduler.waiting.append(request)
        return request


def places(batch: Any) -> list[tuple[int, int, int, int]]:
    return [
        (s.request.request_id, s.start, s.num_tokens, s.computed_position) for s in batch.entries
    ]


def test_an_offer_moves_the_start_and_not_the_reported_position() -> None:
    setting = Setting()
    request = setting.add(1, 14)
    setting.connector.answers[1] = (8, False)
    batch = setting.scheduler.plan()
    assert places(batch) == [(1, 8, 6, 0)]
    assert batch.has_load
    assert sorted(batch.new_pages[0]) == sorted(request.blocks)
    assert request.honoured == 0  # of this iteration only


def test_a_prompt_is_cut_at_block_boundaries_after_the_device_match() -> None:
    setting = Setting(max_num_tokens=7)
    request = setting.add(1, 18)
    setting.connector.answers[1] = (4, False)
    assert places(setting.scheduler.plan()) == [(1, 4, 4, 0)]
    request.cursor = 8
    batch = setting.scheduler.plan()
    assert places(batch) == [(1, 8, 4, 8)]
    assert batch.new_pages[0] == []  # all pages of the prompt came at first
    request.cursor = 12
    assert places(setting.scheduler.plan()) == [(1, 12, 6, 12)]
    assert setting.connector.calls == [("query", 1), ("alloc", 1)]


@pytest.mark.parametrize(
    ("epoch", "order"),
    [
        ("E1", [("query", 1), ("alloc", 1), ("query", 2), ("alloc", 2)]),
        ("E2", [("query", 1), ("query", 2), ("alloc", 1), ("alloc", 2)]),
    ],
)
def test_page_callbacks_come_in_the_epochs_order(epoch: str, order: list[Any]) -> None:
    setting = Setting(epoch=epoch)
    setting.add(1, 5)
    setting.add(2, 5)
    setting.scheduler.plan()
    assert setting.connector.calls == order


def test_an_asynchronous_load_leaves_the_batch_and_returns_without_query() -> None:
    setting = Setting()
    request = setting.add(1, 14)
    setting.connector.answers[1] = (8, True)
    batch = setting.scheduler.plan()
    assert (batch.loading, batch.entries) == ([request], [])
    assert request.phase is Phase.LOADING
    assert not setting.scheduler.plan()
    request.phase = Phase.CONTEXT
    assert places(setting.scheduler.plan()) == [(1, 8, 6, 8)]  # nothing is subtracted
    assert setting.connector.calls == [("query", 1), ("alloc", 1)]


@pytest.mark.parametrize(("epoch", "queried"), [("E1", 0), ("E2", 0), ("E3", 1)])
def test_with_reuse_off_nothing_is_ever_taken_from_the_connector(epoch: str, queried: int) -> None:
    setting = Setting(reuse=False, epoch=epoch)
    setting.add(1, 14)
    setting.connector.answers[1] = (8, False)
    batch = setting.scheduler.plan()
    position = -8 if queried else 0  # E3 reports a negative one
    assert places(batch) == [(1, 0, 14, position)]
    assert setting.connector.calls.count(("query", 1)) == queried
    assert ("alloc", 1) in setting.connector.calls


def test_a_request_waits_until_its_pages_to_completion_are_there() -> None:
    setting = Setting(num_blocks=6)
    first = setting.add(1, 8, max_new_tokens=5)  # 3 pages at the end, 2 now
    setting.add(2, 12, max_new_tokens=2)  # 4 pages at the end
    assert [s.request for s in setting.scheduler.plan().entries] == [first]
    assert len(setting.scheduler.waiting) == 1
    first.phase = Phase.ENDED
    setting.scheduler.active.clear()
    setting.pages.release(first.blocks)
    assert [s.request.request_id for s in setting.scheduler.plan().entries] == [2]


def test_generations_grow_by_a_page_at_a_boundary_and_stop_at_their_last_sample() -> None:
    setting = Setting()
    request = setting.add(1, 7, max_new_tokens=3)
    setting.scheduler.plan()
    request.phase, request.cursor, request.num_issued = Phase.GENERATION, 7, 1
    assert places(setting.scheduler.plan()) == [(1, 7, 1, 6)]
    assert len(request.blocks) == 2
    request.num_issued, request.tokens = 2, [*request.tokens, 5]
    batch = setting.scheduler.plan()
    assert places(batch) == [(1, 8, 1, 7)]
    assert batch.new_pages[0] == request.blocks[2:]
    request.num_issued = 3
    assert not setting.scheduler.plan()


def test_a_match_inside_a_page_is_copied_and_its_target_not_poisoned() -> None:
    setting = Setting()
    first = setting.add(1, 8)
    setting.scheduler.plan()
    setting.pages.store((None, None, None), first.tokens, first.blocks)
    setting.scheduler.active.clear()
    setting.scheduler.waiting.append(
        HostRequest(2, first.params, RequestHandle(2), None, tokens=list(first.tokens))
    )
    batch = setting.scheduler.plan()
    second = batch.contexts[0].request
    assert places(batch) == [(2, 7, 1, 7)]
    assert setting.copies == [(first.blocks[1], second.blocks[1])]
    assert batch.new_pages[0] == []


def test_a_batch_holds_at_most_so_many_requests() -> None:
    setting = Setting(max_batch_size=2)
    for request_id in (1, 2, 3):
        setting.add(request_id, 4)
    assert [place[0] for place in places(setting.scheduler.plan())] == [1, 2]


def test_older_executors_overstate_a_chunk_that_is_trimmed() -> None:
    for late_trim, reported in ((False, 4), (True, 7)):
        setting = Setting(max_num_tokens=7, late_trim=late_trim)
        setting.add(1, 18)
        (scheduled,) = setting.scheduler.plan().entries
        assert (scheduled.num_tokens, scheduled.reported_tokens) == (4, reported)

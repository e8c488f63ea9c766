from typing import Any

import pytest

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Batch
from adapter.conformance.host.requests import HostRequest, Phase, RequestHandle, RequestParams
from adapter.conformance.host.v2.cache import V2Cache
from adapter.conformance.host.v2.scheduling import V2Scheduler

BLOCK = 4


class Answering:
    """A connector's scheduler that offers what it is told and notes what it hears."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, bool]] = {}
        self.calls: list[tuple[Any, ...]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        self.calls.append(("query", request.request_id, num_computed))
        assert not hasattr(request, "py_num_connector_matched_tokens")
        assert request.is_generation_only_request() is False
        return self.answers.get(request.request_id, (0, False))

    def update_state_after_alloc_by_layer_group(
        self, request: Any, block_ids: list[list[int]]
    ) -> None:
        honoured = request.py_num_connector_matched_tokens
        self.calls.append(("alloc", request.request_id, honoured, block_ids))

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        self.calls.append(("cancel_load", request.request_id, start, end))


class Setting:
    def __init__(
        self,
        *,
        pages: tuple[int, ...] = (20,),
        windows: tuple[int, ...] = (0,),
        epoch: Any = "E3",
        max_num_tokens: int = 64,
        max_batch_size: int = 8,
        is_chunked: bool = True,
        aggressive: bool = False,
    ) -> None:
        self.connector = Answering()
        options = HostOptions(epoch=epoch, layout="v2", aggressive=aggressive)
        self.cache = V2Cache(pages, windows, BLOCK)
        self.scheduler = V2Scheduler(
            self.cache,
            ConnectorPort(self.connector, object(), HookRecorder(), options),
            options,
            max_num_tokens=max_num_tokens,
            max_batch_size=max_batch_size,
            new_memo=tuple,
            is_chunked=is_chunked,
        )

    def add(self, request_id: int, num_tokens: int, max_new_tokens: int = 9) -> HostRequest:
        prompt = tuple(request_id * 1000 + i for i in range(num_tokens))
        params = RequestParams(prompt, max_new_tokens)
        handle = RequestHandle(request_id)
        request = HostRequest(request_id, params, handle, None, tokens=list(prompt))
        self.scheduler.waiting.append(request)
        return request

    def step(self) -> Batch:
        """Plan, and let the forward and its samples happen."""
        batch = self.scheduler.plan()
        for scheduled in batch.entries:
            request = scheduled.request
            request.forwards_seen = True
            if scheduled.is_context:
                request.cursor += scheduled.num_tokens
                self.cache.store_computed(request)
                if request.cursor < request.context_len:
                    continue
                request.phase = Phase.GENERATION
            request.num_issued += 1
            request.tokens.append(7)
        self.cache.check_integrity()
        return batch


def places(batch: Any) -> list[tuple[int, int, int, int]]:
    return [
        (s.request.request_id, s.start, s.num_tokens, s.computed_position) for s in batch.entries
    ]


def test_pages_come_with_the_chunk() -> None:
    setting = Setting(max_num_tokens=10)
    request = setting.add(1, 21)
    batch = setting.step()
    assert places(batch) == [(1, 0, 8, 0)]
    assert [len(table) for table in request.tables] == [2]
    assert batch.new_pages == request.tables
    assert places(setting.step()) == [(1, 8, 8, 8)]
    assert places(setting.step()) == [(1, 16, 5, 16)]
    assert len(request.tables[0]) == 6
    assert [call[0] for call in setting.connector.calls] == ["query", "alloc"]


def test_an_offer_within_the_chunk_adds_no_page() -> None:
    setting = Setting()
    request = setting.add(1, 21)
    setting.connector.answers[1] = (8, False)
    batch = setting.step()
    assert places(batch) == [(1, 8, 13, 0)]
    assert batch.has_load
    assert setting.connector.calls == [("query", 1, 0), ("alloc", 1, 8, request.tables)]


def test_an_offer_beyond_the_chunk_moves_it_and_brings_pages() -> None:
    setting = Setting(max_num_tokens=8)
    request = setting.add(1, 40)
    setting.connector.answers[1] = (18, False)
    batch = setting.step()
    # [18, 26) is cut to whole blocks.
    assert places(batch) == [(1, 18, 6, 0)]
    assert len(request.tables[0]) == 6
    assert setting.connector.calls[-1][2] == 18


def test_without_pages_for_it_an_offer_is_honoured_in_part_or_not_at_all() -> None:
    for chunk, honoured in ((8, 4), (4, 0)):
        setting = Setting(max_num_tokens=chunk, pages=(4,), epoch="E4")
        setting.add(1, 40)
        setting.connector.answers[1] = (32, False)
        batch = setting.step()
        assert places(batch) == [(1, honoured, chunk - honoured, 0)]
        assert batch.has_load == bool(honoured)
        assert setting.connector.calls[1][:3] == ("alloc", 1, honoured)
        assert setting.connector.calls[2] == ("cancel_load", 1, honoured, 32)


def test_the_third_epoch_has_no_cancel_and_all_of_an_offer_needs_none() -> None:
    for epoch, pages in (("E3", 4), ("E4", 20)):
        setting = Setting(max_num_tokens=8, pages=(pages,), epoch=epoch)
        setting.add(1, 40)
        setting.connector.answers[1] = (32, False)
        setting.step()
        assert [call[0] for call in setting.connector.calls] == ["query", "alloc"]


def test_each_query_is_followed_by_its_pages() -> None:
    setting = Setting()
    setting.add(1, 6)
    setting.add(2, 6)
    setting.step()
    calls = [call[:2] for call in setting.connector.calls]
    assert calls == [("query", 1), ("alloc", 1), ("query", 2), ("alloc", 2)]


def aggressive(pages: int, max_num_tokens: int = 64) -> Setting:
    return Setting(pages=(pages,), epoch="E4", aggressive=True, max_num_tokens=max_num_tokens)


def test_the_aggressive_mode_asks_early_and_settles_later() -> None:
    setting = aggressive(8)
    setting.add(1, 24)
    second, third = setting.add(2, 16), setting.add(3, 16)
    for request_id in (2, 3):
        setting.connector.answers[request_id] = (8, False)
    setting.step()
    calls = [call[:2] for call in setting.connector.calls]
    # Two pages are left, and four are needed: both were asked about, none of them begun.
    assert calls == [("query", 1), ("alloc", 1), ("query", 2), ("query", 3)]
    assert (second.tables, second.phase) == ([], Phase.WAITING)
    setting.connector.calls.clear()
    assert [s.request.request_id for s in setting.step().entries] == [1]
    assert setting.connector.calls == []  # once per allocation
    first = setting.scheduler.active.pop(1)
    setting.cache.release(first.tables)
    assert places(setting.step()) == [(2, 8, 8, 0), (3, 8, 8, 0)]
    assert [call[:3] for call in setting.connector.calls] == [("alloc", 2, 8), ("alloc", 3, 8)]
    assert setting.scheduler.prefixes is not None
    assert setting.scheduler.prefixes.num_held_over == 2
    assert third.tables != []


def test_in_the_aggressive_mode_what_is_offered_costs_no_budget() -> None:
    setting = aggressive(20, max_num_tokens=12)
    for request_id in (1, 2):
        setting.add(request_id, 20)
        setting.connector.answers[request_id] = (16, False)
    assert places(setting.step()) == [(1, 16, 4, 0), (2, 16, 4, 0)]


def test_in_the_aggressive_mode_an_offer_is_taken_up_in_part_where_pages_are_few() -> None:
    setting = aggressive(6, max_num_tokens=8)
    setting.add(1, 40)
    setting.connector.answers[1] = (32, True)
    assert not setting.step()
    assert not setting.step()
    batch = setting.step()
    assert [request.request_id for request in batch.loading] == [1]
    assert [call[:4] for call in setting.connector.calls if call[0] != "alloc"] == [
        ("query", 1, 0),
        ("cancel_load", 1, 16, 32),
    ]


def test_in_the_aggressive_mode_a_waiting_request_gives_its_offer_back() -> None:
    setting = aggressive(3)
    request = setting.add(1, 24)
    setting.connector.answers[1] = (8, False)
    setting.step()
    setting.scheduler.give_back(request)
    assert setting.connector.calls == [("query", 1, 0), ("cancel_load", 1, 0, 8)]
    Setting().scheduler.give_back(request)  # no offer is held in the other mode


def test_an_offer_of_the_whole_prompt_is_cut() -> None:
    setting = Setting()
    setting.add(1, 16)
    setting.connector.answers[1] = (16, False)
    assert places(setting.step()) == [(1, 15, 1, 0)]


@pytest.mark.parametrize(("epoch", "start"), [("E3", 0), ("E4", 32)])
def test_after_an_async_load_the_third_epoch_computes_it_again(epoch: str, start: int) -> None:
    setting = Setting(max_num_tokens=8, epoch=epoch, windows=(0, 5), pages=(20, 20))
    request = setting.add(1, 40)
    setting.connector.answers[1] = (32, True)
    batch = setting.step()
    assert not batch.entries
    assert batch.loading == [request]
    assert len(request.tables[0]) == 10
    assert (-1 in request.tables[1]) == (epoch == "E4")
    assert not setting.step()
    request.phase = Phase.CONTEXT
    assert places(setting.step()) == [(1, start, 8, start)]
    assert [call[0] for call in setting.connector.calls] == ["query", "alloc"]


def test_an_async_load_of_which_nothing_is_honoured_is_awaited_all_the_same() -> None:
    setting = Setting(max_num_tokens=4, pages=(3,))
    request = setting.add(1, 40)
    setting.connector.answers[1] = (36, True)
    batch = setting.step()
    assert (batch.loading, batch.has_load) == ([request], False)
    assert request.phase is Phase.LOADING


def test_windows_take_and_keep_only_what_they_reach() -> None:
    setting = Setting(max_num_tokens=8, windows=(0, 6), pages=(20, 20))
    request = setting.add(1, 40)
    setting.connector.answers[1] = (24, False)
    batch = setting.step()
    # Position 24 sees 19 and later: block 4 on.
    full, window = request.tables
    assert [page == -1 for page in window] == [True] * 4 + [False] * 4
    assert -1 not in full
    assert setting.connector.calls[-1][3] == [full, window]
    # The first chunk's pages in the window group were given back and one came again.
    assert sorted(set(batch.new_pages[1])) == sorted(batch.new_pages[1])
    setting.step()
    assert [page == -1 for page in request.tables[1]] == [True] * 6 + [False] * 4


def test_running_out_of_pages_destroys_the_request_begun_last() -> None:
    setting = Setting(pages=(7,))
    first, second = setting.add(1, 12), setting.add(2, 8)
    setting.step()
    assert setting.cache.num_available == 2
    for _ in range(4):
        assert setting.step().preempted == []
    # Position 16 of the first is block 4, and there is none.
    generated = second.generated
    batch = setting.step()
    assert batch.preempted == [second]
    assert [scheduled.request for scheduled in batch.entries] == [first]
    assert second.tables == []
    assert second.phase is Phase.WAITING
    assert list(setting.scheduler.waiting) == [second]
    assert (second.attempt, second.context_len) == (1, 8 + len(generated))
    assert second.memo == tuple(second.tokens)
    assert setting.scheduler.num_resets == 1


def test_a_destroyed_request_replays_under_its_id_with_what_it_generated() -> None:
    setting = Setting(pages=(6,))
    first, second = setting.add(1, 12), setting.add(2, 8)
    while not setting.step().preempted:
        pass
    setting.cache.release(first.tables)
    first.tables = []
    del setting.scheduler.active[1]
    known = len(second.tokens)
    issued = second.num_issued
    setting.connector.calls.clear()
    batch = setting.step()
    # Its full prompt blocks are still cached.
    assert places(batch) == [(2, 8, known - 8, 8)]
    assert batch.entries[0].first_forward
    assert setting.connector.calls[0] == ("query", 2, 8)
    assert second.num_issued == issued + 1
    assert places(setting.step()) == [(2, known, 1, known)]


def test_a_request_alone_destroys_itself_when_pages_are_held_elsewhere() -> None:
    setting = Setting(pages=(3,))
    request = setting.add(1, 8)
    setting.step()
    held = [setting.cache.pools.take(0, 1)]
    while request.phase is Phase.GENERATION:
        setting.step()
    assert request.phase is Phase.WAITING
    setting.cache.release(held)
    assert setting.step().entries[0].request is request


def test_loads_and_placed_requests_are_never_destroyed() -> None:
    setting = Setting(pages=(8,))
    setting.add(1, 12)
    loading = setting.add(2, 12)
    setting.connector.answers[2] = (8, True)
    setting.step()
    assert loading.phase is Phase.LOADING
    for _ in range(20):
        assert loading not in setting.step().preempted
    assert loading.phase is Phase.LOADING


def test_a_generation_only_request_is_not_asked_for() -> None:
    setting = Setting()
    prompt = tuple(range(9))
    params = RequestParams(prompt, 2, generation_only=True)
    request = HostRequest(1, params, RequestHandle(1), None, tokens=list(prompt))
    setting.scheduler.waiting.append(request)
    setting.step()
    assert [call[0] for call in setting.connector.calls] == ["alloc"]


def test_batch_size_counts_what_is_begun() -> None:
    setting = Setting(max_batch_size=2)
    for request_id in (1, 2, 3):
        setting.add(request_id, 6)
    assert len(setting.step().entries) == 2
    assert len(setting.scheduler.waiting) == 1


def test_without_chunks_a_prompt_waits_until_it_fits() -> None:
    setting = Setting(max_num_tokens=20, is_chunked=False)
    setting.add(1, 12)
    setting.add(2, 12)
    assert [(one.request.request_id, one.num_tokens) for one in setting.step().contexts] == [
        (1, 12)
    ]
    assert [(one.request.request_id, one.num_tokens) for one in setting.step().contexts] == [
        (2, 12)
    ]
    chunked = Setting(max_num_tokens=20)
    chunked.add(1, 12)
    chunked.add(2, 12)
    assert [one.num_tokens for one in chunked.step().contexts] == [12, 8]


def test_without_chunks_a_loaded_request_waits_for_room_as_well() -> None:
    setting = Setting(max_num_tokens=12, is_chunked=False, epoch="E4")
    loading = setting.add(1, 12)
    setting.connector.answers[1] = (4, True)
    setting.step()
    assert loading.phase is Phase.LOADING
    setting.add(2, 8)
    assert [one.request.request_id for one in setting.step().contexts] == [2]
    loading.phase = Phase.CONTEXT  # its load is done; eight tokens are left, one feeds the other
    setting.add(3, 5)
    batch = setting.step()
    assert [(one.request.request_id, one.num_tokens) for one in batch.contexts] == [(1, 8)]

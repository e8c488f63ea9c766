"""Ends of requests, driven directly; what the whole loop does is in test_executor."""

from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.cache import V1Cache
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.drafts import Sample
from adapter.conformance.host.errors import RequestCancelledError, StreamError
from adapter.conformance.host.finishing import Finisher, InFlight
from adapter.conformance.host.forward import ForwardEntry, TokenCell
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import DeltaReporter
from adapter.conformance.host.requests import (
    HostRequest,
    Phase,
    RequestHandle,
    RequestParams,
)
from adapter.conformance.host.scheduling import BatchScheduler
from adapter.conformance.host.streams import HostEvent, HostStream
from adapter.conformance.host.transfers import TransferLedger

pytestmark = pytest.mark.torch


class Answering:
    """Scheduler and worker in one, with settable answers."""

    def __init__(self) -> None:
        self.keep = False
        self.finished: list[tuple[int, list[int]]] = []
        self.polls: list[tuple[list[int], list[int]]] = []
        self.answer: tuple[list[int], list[int]] = ([], [])

    def request_finished_by_layer_group(self, request: Any, block_ids: list[list[int]]) -> bool:
        return self.request_finished(request, block_ids[0])

    def request_finished(self, request: Any, block_ids: list[int]) -> bool:
        self.finished.append((request.request_id, block_ids))
        return self.keep

    def get_finished(self, saved: list[int], loading: list[int]) -> tuple[list[int], list[int]]:
        self.polls.append((saved, loading))
        answer, self.answer = self.answer, ([], [])
        return answer


class Setting:
    def __init__(self, **options: Any) -> None:
        self.connector = Answering()
        made = HostOptions(**options)
        port = ConnectorPort(self.connector, self.connector, HookRecorder(), made)
        self.pages = BlockAllocator(8, 4, reuse=True, partial=False)
        self.scheduler = BatchScheduler(
            self.pages,
            port,
            made,
            max_num_tokens=64,
            max_batch_size=8,
            reuse=True,
            copy_page=lambda source, target: None,
        )
        self.ledger = TransferLedger()
        reporter = DeltaReporter(made.epoch)
        self.finisher = Finisher(
            self.scheduler, V1Cache(self.pages), port, reporter, self.ledger, made
        )
        self.request = self.generating()

    def generating(self) -> HostRequest:
        params = RequestParams(tuple(range(6)), 2, stop_ids=frozenset({99}))
        request = HostRequest(1, params, RequestHandle(1), None, tokens=list(range(6)))
        request.blocks = self.pages.take(2)
        request.phase, request.num_issued = Phase.GENERATION, 1
        self.scheduler.active[1] = request
        return request

    def scan(self, token: int) -> None:
        cell = TokenCell()
        cell.token = token
        entry = ForwardEntry(5, 1, cell, ((),), True, False, None)
        self.finisher.scan(InFlight([Sample(self.request, (entry,), (cell,))], HostEvent()))


def test_length_and_stop_end_a_request_and_free_its_pages() -> None:
    for tokens, reason in (([7, 8], "length"), ([7, 99], "stop"), ([99], "stop")):
        setting = Setting()
        blocks = list(setting.request.blocks)
        for token in tokens:
            setting.scan(token)
        result = setting.request.handle.result(0)
        assert (result.tokens, result.finish_reason) == (tokens, reason)
        assert setting.connector.finished == [(1, blocks)]
        assert setting.pages.num_available == 8
        assert setting.scheduler.active == {}


def test_pages_stay_until_reported_saved_and_the_client_has_its_answer_meanwhile() -> None:
    setting = Setting()
    setting.connector.keep = True
    setting.scan(99)
    assert setting.request.handle.done()
    assert setting.pages.num_available == 6
    setting.finisher.poll_transfers()
    setting.finisher.poll_transfers()
    assert setting.connector.polls == [([1], []), ([], [])]
    setting.connector.answer = ([1], [])
    setting.finisher.poll_transfers()
    assert setting.pages.num_available == 8


@pytest.mark.parametrize("answer", [([1, 1], []), ([2], []), ([], [1])])
def test_an_id_that_is_not_pending_kills(answer: tuple[list[int], list[int]]) -> None:
    setting = Setting()
    setting.connector.keep = True
    setting.scan(99)
    setting.connector.answer = answer
    with pytest.raises(KeyError):
        setting.finisher.poll_transfers()


def test_a_request_stopped_early_is_scanned_again() -> None:
    setting = Setting()
    setting.scan(99)
    setting.scan(5)  # the batch launched before the stop was known; its pages are gone
    assert len(setting.connector.finished) == 1
    saving = Setting()
    saving.connector.keep = True
    saving.scan(99)
    saving.connector.keep = False
    saving.scan(5)  # still saving: asked again with the same pages
    assert saving.connector.finished[0] == saving.connector.finished[1]
    assert saving.request.handle.result(0).tokens == [99]


def test_a_second_true_leaks_the_pages() -> None:
    setting = Setting()
    setting.connector.keep = True
    setting.scan(99)
    setting.scan(5)
    setting.finisher.poll_transfers()
    assert setting.connector.polls == [([1, 1], [])]
    setting.connector.answer = ([1], [])
    setting.finisher.poll_transfers()
    assert setting.pages.num_available == 6


@pytest.mark.parametrize(("epoch", "calls"), [("E1", 1), ("E2", 0), ("E3", 0)])
def test_a_cancelled_request_loses_its_pages_by_epoch(epoch: str, calls: int) -> None:
    setting = Setting(epoch=epoch)
    setting.finisher.cancel([1, 5], "was cancelled")
    assert len(setting.connector.finished) == calls
    assert setting.pages.num_available == 8
    with pytest.raises(RequestCancelledError, match="request 1 was cancelled"):
        setting.request.handle.result(0)
    setting.scan(7)  # its sample was under way
    assert setting.request.tokens == list(range(6))


def test_a_cancelled_load_may_still_be_reported_once() -> None:
    setting = Setting()
    setting.request.phase = Phase.LOADING
    setting.ledger.start_load(1)
    setting.finisher.cancel([1], "was cancelled")
    setting.connector.answer = ([], [1])
    setting.finisher.poll_transfers()
    setting.connector.answer = ([], [1])
    with pytest.raises(KeyError, match="not pending"):
        setting.finisher.poll_transfers()


def test_a_loaded_request_becomes_schedulable() -> None:
    setting = Setting()
    setting.request.phase = Phase.LOADING
    setting.ledger.start_load(1)
    setting.connector.answer = ([], [1])
    setting.finisher.poll_transfers()
    assert setting.request.phase is Phase.CONTEXT
    assert setting.connector.polls == [([], [1])]


def test_a_failed_stream_surfaces_when_samples_are_waited_for() -> None:
    setting, stream = Setting(), HostStream("failing")

    def fail() -> None:
        raise OSError("boom")

    stream.enqueue(fail)
    with pytest.raises(StreamError, match="boom"):
        setting.finisher.scan(InFlight([], stream.record_event()))
    stream.close(10)
    setting.finisher.scan(None)
    setting.finisher.scan(InFlight())


def test_pages_that_were_saved_meanwhile_are_not_asked_about_again() -> None:
    setting = Setting()
    setting.connector.keep = True
    setting.scan(99)
    setting.connector.answer = ([1], [])
    setting.finisher.poll_transfers()
    setting.scan(5)  # saved and released: nothing is left to hold
    assert len(setting.connector.finished) == 1
    assert setting.pages.num_available == 8


def test_the_second_manager_calls_again_with_no_pages_where_they_are_gone() -> None:
    for stops in (True, False):
        setting = Setting(epoch="E3", layout="v2")
        if stops:
            setting.scan(99)
        else:
            setting.finisher.cancel([1], "was cancelled")
        before = len(setting.connector.finished)
        setting.scan(5)
        assert setting.connector.finished[before:] == [(1, [])]
        assert setting.pages.num_available == 8


def test_a_sample_of_a_dead_allocation_does_not_count() -> None:
    setting = Setting()
    setting.request.attempt = 1
    setting.scan(99)
    assert not setting.request.handle.done()
    assert setting.request.tokens == list(range(6))


def test_a_cancelled_request_in_the_newest_epoch_ends_when_its_load_has() -> None:
    setting = Setting(epoch="E4")
    setting.request.phase = Phase.LOADING
    setting.ledger.start_load(1)
    setting.finisher.cancel([1], "was cancelled")
    setting.finisher.poll_transfers()
    assert (setting.finisher.num_cancelling, setting.request.handle.done()) == (1, False)
    setting.connector.answer = ([], [1])
    setting.finisher.poll_transfers()
    assert setting.request.phase is Phase.ENDED
    assert (setting.finisher.num_cancelling, setting.pages.num_available) == (0, 8)

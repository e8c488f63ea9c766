from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.cache import V1Cache
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.device import Device
from adapter.conformance.host.finishing import InFlight
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.launching import Launcher
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from adapter.conformance.host.reports import Batch, Scheduled
from adapter.conformance.host.requests import HostRequest, Phase, RequestHandle, RequestParams

pytestmark = pytest.mark.torch

WAIT_S = 10.0


@dataclass
class Worker:
    """A connector's worker that notes its hooks, and raises in one of them."""

    raising: str = ""
    calls: list[str] = field(default_factory=list)

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.raising:
            raise OSError(name)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        self._note("pre")

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        self._note("post")

    def wait_for_save(self, stream: Any) -> None:
        self._note("save")


class Setting:
    def __init__(self, worker: Worker, **options: Any) -> None:
        self.model = PayloadModel(4)
        self.device = Device(self.model, 8)
        self.pages = BlockAllocator(8, 4, reuse=True, partial=True)
        made = HostOptions(**options)
        port = ConnectorPort(object(), worker, HookRecorder(), made)
        self.launcher = Launcher(self.device, V1Cache(self.pages), port, made)
        params = RequestParams(tuple(range(10)), 4)
        memo = self.model.new_memo(params.prompt)
        self.request = HostRequest(1, params, RequestHandle(1), memo, tokens=list(params.prompt))
        self.request.blocks = self.pages.take(3)
        self.request.phase = Phase.CONTEXT

    def launch(self, start: int, num_tokens: int, *, is_context: bool = True) -> InFlight:
        first = not self.request.forwards_seen
        part = Scheduled(
            self.request,
            start,
            num_tokens,
            num_tokens,
            start,
            is_context=is_context,
            first_forward=first,
        )
        return self.launcher.launch(Batch(contexts=[part]))


def test_only_a_finished_prompt_is_sampled_and_becomes_matchable() -> None:
    setting = Setting(Worker())
    assert setting.launch(0, 8).samples == []
    assert (setting.request.cursor, setting.request.phase) == (8, Phase.CONTEXT)
    assert setting.pages.allocate((None, None, None), range(10)).num_matched_tokens == 0
    in_flight = setting.launch(8, 2)
    assert len(in_flight.samples) == 1
    assert (setting.request.num_issued, setting.request.phase) == (1, Phase.GENERATION)
    assert setting.pages.allocate((None, None, None), range(10)).num_matched_tokens == 8
    setting.launcher.sample(in_flight)
    fed = setting.launch(10, 1, is_context=False)
    setting.launcher.sample(fed)
    setting.launcher.sample(None)
    assert fed.sampled is not None
    fed.sampled.synchronize(WAIT_S)
    assert setting.request.cursor == 10
    assert (setting.launcher.num_forwards, setting.launcher.num_computed_tokens) == (3, 11)
    setting.device.close()


@pytest.mark.parametrize("hook", ["pre", "post", "save"])
def test_a_raising_hook_leaves_the_request_where_it_was(hook: str) -> None:
    setting = Setting(Worker(raising=hook))
    with pytest.raises(OSError, match=hook):
        setting.launch(0, 10)
    assert (setting.request.cursor, setting.request.num_issued) == (0, 0)
    assert setting.launcher.num_forwards == 0
    setting.device.close()


def test_a_replayed_graph_has_no_layer_hooks() -> None:
    worker = Worker()
    setting = Setting(worker, cuda_graphs=True)
    setting.launch(0, 9)
    setting.launch(9, 1)
    assert worker.calls == ["pre", "post", "save", "save"]
    setting.device.close()

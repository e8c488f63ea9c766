"""``HostEngine.forget_reuse``: the host's own reuse emptied between requests."""

import threading

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import ExecutorDiedError
from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from tests.adapter.conformance.host import connectors

pytestmark = pytest.mark.torch
PROMPT = list(range(33))


def engine(url: str | None = None, options: HostOptions | None = None) -> HostEngine:
    config = None if url is None else connectors.connector_config("Dict", url)
    args = LlmArgs("model", connectors.cache_config(), config)
    return HostEngine(args, 16, model=PayloadModel(8), options=options)


def test_afterwards_nothing_matches_on_the_device() -> None:
    with engine() as host:
        assert host.submit(PROMPT, 2).result(10).num_device_tokens == 0
        assert host.submit(PROMPT, 2).result(10).num_device_tokens == 32
        assert host.forget_reuse(10) > 0
        assert host.submit(PROMPT, 2).result(10).num_device_tokens == 0
        host.forget_reuse(10)
        assert host.forget_reuse(10) == 0
        host.allocator.check_integrity()
        assert host.stats().num_available_blocks == 16


def test_it_waits_for_saves_that_hold_pages() -> None:
    with engine("dict://forget-keep") as host:
        host.submit(PROMPT, 1).result(10)
        assert host.forget_reuse(10) == 5
        assert host.stats().num_saving_pages == 0
        again = host.submit(PROMPT, 1).result(10)
        assert (again.num_device_tokens, again.num_loaded_tokens) == (0, 32)


def test_it_waits_for_requests_and_says_when_they_take_too_long() -> None:
    gate = threading.Event()

    def probe(point: str, ids: tuple[int, ...]) -> None:
        if point == "launched":
            assert gate.wait(30)

    with engine(options=HostOptions(probe=probe)) as host:
        handle = host.submit(PROMPT, 2)
        with pytest.raises(TimeoutError, match="pages held for saves: 0"):
            host.forget_reuse(0.1)
        gate.set()
        handle.result(10)
        host.forget_reuse(10)
        assert host.submit(PROMPT, 1).result(10).num_device_tokens == 0


def test_a_stopped_engine_forgets_nothing() -> None:
    host = engine()
    host.shutdown()
    with pytest.raises(ExecutorDiedError):
        host.forget_reuse(10)

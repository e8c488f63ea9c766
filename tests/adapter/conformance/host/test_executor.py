"""The order of calls, the strict rules and the deaths of the loop, with recording connectors."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import (
    ExecutorDiedError,
    ForwardFailedError,
    RequestCancelledError,
    StreamError,
)
from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from protocol.device.interface import DeviceError
from tests.adapter.conformance.host.connectors import (
    CALLS,
    cache_config,
    connector_config,
)

pytestmark = pytest.mark.torch

WAIT_S = 20.0
PER_ITERATION = ("build", "bind", "start_load_kv", "wait_for_save")
COUNTER = itertools.count()


def engine(rule: str = "", *, args: dict[str, Any] | None = None, **options: Any) -> HostEngine:
    url = f"rule://{rule}" if rule else f"plain://{next(COUNTER)}"
    arguments = LlmArgs(
        "model",
        kv_cache_config=cache_config(8),
        kv_connector_config=connector_config("Recording", url),
        **(args or {}),
    )
    model = PayloadModel(8, num_layers=2)
    return HostEngine(arguments, 32, model=model, options=HostOptions(**options))


def calls_of(host: HostEngine) -> list[tuple[str, str, Any]]:
    config = host.llm_args.kv_connector_config
    assert config is not None
    return CALLS[str(config.server_url)]


def names_of(host: HostEngine, *but: str) -> list[str]:
    return [name for name, _, _ in calls_of(host) if name not in but]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.001)


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return [seed * 1000 + i for i in range(num_tokens)]


def test_bring_up_order() -> None:
    with engine() as host:
        names = names_of(host)
        assert set(names[:2]) == {"scheduler", "worker"}
        assert names[2:] == [
            "register_forward_pass_callable",
            "forward_callable",  # warm-up, before registration and without hooks
            "register_kv_caches",
            "wait_for_initialization",
        ]
        threads = [thread for name, thread, _ in calls_of(host) if name == "register_kv_caches"]
        assert threads == ["MainThread"]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_generated", [1, 2, 5])
def test_calls_per_generated_token(num_generated: int, overlap: bool) -> None:
    with engine(overlap=overlap) as host:
        host.submit(prompt(10), num_generated).result(WAIT_S)
        until(lambda: host.hooks.num_calls("get_finished") >= num_generated + overlap)
    names = names_of(host)
    for name in PER_ITERATION:
        assert names.count(name) == num_generated, name
    assert names.count("get_finished") == num_generated + overlap
    assert names.count("forward_callable") == num_generated + 1  # and the warm-up
    assert names.count("wait_for_layer_load") == names.count("save_kv_layer") == 2 * num_generated
    assert (names.count("query"), names.count("alloc"), names.count("request_finished")) == (1,) * 3


def test_order_and_thread_of_one_iteration() -> None:
    with engine(overlap=False) as host:
        host.submit(prompt(10), 1).result(WAIT_S)
    calls = calls_of(host)[6:]
    layers = [("wait_for_layer_load", (0, "X")), ("save_kv_layer", (0, "X"))]
    layers += [("wait_for_layer_load", (1, "X")), ("save_kv_layer", (1, "X"))]
    assert [name for name, _, _ in calls] == [
        *("query", "alloc", "build", "bind", "start_load_kv"),
        *(name for name, _ in layers),
        *("forward_callable", "wait_for_save", "request_finished", "get_finished"),
    ]
    assert {thread for _, thread, _ in calls} == {"executor"}
    details = {name: detail for name, _, detail in calls}
    assert details["start_load_kv"] == details["wait_for_save"] == "M"
    assert [(n, d) for n, _, d in calls if n.endswith(("load", "layer"))] == layers


def reports(host: HostEngine, kind: str) -> list[Any]:
    outputs = [detail for name, _, detail in calls_of(host) if name == "build"]
    return [data for output in outputs for data in getattr(output, kind)]


@pytest.mark.parametrize("overlap", [True, False])
def test_deltas_under_chunked_prefill_and_generation(overlap: bool) -> None:
    with engine(overlap=overlap, args={"max_num_tokens": 16}) as host:
        result = host.submit(prompt(30), 4).result(WAIT_S)
    (first,) = reports(host, "new_requests")
    assert first.new_tokens == prompt(30)
    assert len(first.new_block_ids) == 4
    rest = reports(host, "cached_requests")
    seen = [(data.computed_position, data.num_scheduled_tokens) for data in (first, *rest)]
    lag = 1 if overlap else 0
    assert seen == [(0, 16), (16, 14), *((30 + i - lag, 1) for i in range(3))]
    known = [[token] for token in result.tokens]
    fed = [[], *known[:2]] if overlap else known[:3]
    assert [data.new_tokens for data in rest] == [[], *fed]
    assert [len(data.new_block_ids) for data in rest] == [0, 0, 0, 1]


def test_the_forward_still_runs_in_wait_for_save() -> None:
    gate, running = threading.Event(), []
    with engine(overlap=False) as host:
        worker = host.connector.worker
        host._device.execution.enqueue(lambda: gate.wait(WAIT_S))
        original = worker.wait_for_save

        def look(stream: Any) -> None:
            running.append(not host._device.execution.query())
            gate.set()
            original(stream)

        worker.wait_for_save = look
        host.submit(prompt(4), 1).result(WAIT_S)
    assert running == [True]


def test_an_idle_executor_polls_nothing() -> None:
    with engine("keep") as host:
        host.submit(prompt(10), 1).result(WAIT_S)
        until(lambda: host.hooks.num_calls("get_finished") == 2)
        before = len(calls_of(host))
        time.sleep(0.05)  # it is the absence of calls that is shown
        assert len(calls_of(host)) == before
        assert host.stats().num_saving_pages == 2
        host.connector.worker.answers = [([1], [])]
        host.submit(prompt(3, seed=5), 1).result(WAIT_S)
        until(lambda: host.stats().num_saving_pages == 1)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_stop_token_under_overlap_adds_a_forward(overlap: bool) -> None:
    with engine(overlap=overlap) as probe:
        second = probe.submit(prompt(10), 4).result(WAIT_S).tokens[1]
    with engine(overlap=overlap) as host:
        result = host.submit(prompt(10), 4, stop_ids=[second]).result(WAIT_S)
        until(lambda: host.hooks.num_calls("get_finished") >= 2 + overlap)
    assert (len(result.tokens), result.finish_reason) == (2, "stop")
    names = names_of(host)
    assert names.count("wait_for_save") == names.count("get_finished") == 2 + overlap
    assert names.count("request_finished") == 1


def test_the_batch_behind_a_stop_is_scanned_when_others_come() -> None:
    with engine() as probe:
        second = probe.submit(prompt(10), 4).result(WAIT_S).tokens[1]
    with engine("keep") as host:
        host.submit(prompt(10), 4, stop_ids=[second]).result(WAIT_S)
        until(lambda: host.hooks.num_calls("get_finished") == 3)
        # Nothing is active: the executor sleeps, with the batch of a request that ended in flight.
        assert host._executor._iteration.previous is not None
        host.submit(prompt(3, seed=5), 1).result(WAIT_S)
    finished = [detail for name, _, detail in calls_of(host) if name == "request_finished"]
    assert [request_id for request_id, _ in finished] == [1, 1, 2]
    assert finished[0] == finished[1]


@pytest.mark.parametrize("overlap", [True, False])
def test_early_e1_with_overlap_calls_everything_once_more(overlap: bool) -> None:
    with engine(epoch="E1") as probe:
        right = probe.submit(prompt(13), 4).result(WAIT_S).tokens
    with engine(epoch="E1", one_call_more=True, overlap=overlap) as host:
        result = host.submit(prompt(13), 4).result(WAIT_S)
        until(lambda: host.hooks.num_calls("get_finished") >= 4 + overlap)
        host.allocator.check_integrity()
        assert host.stats().num_available_blocks == 32
    names = names_of(host)
    for name in (*PER_ITERATION, "get_finished"):
        assert names.count(name) == 4 + overlap, name
    assert names.count("save_kv_layer") == names.count("wait_for_layer_load") == 2 * (4 + overlap)
    assert (result.tokens, names.count("request_finished")) == (right, 1)
    # What it computes lies in a page of its own: 13 + 4 tokens are more than two pages hold.
    pages = [len(data.new_block_ids) for data in reports(host, "cached_requests")]
    assert sum(pages) == overlap


def test_asynchronous_loads_are_announced_once_and_reported_new_later() -> None:
    with engine("async") as host:
        handle = host.submit(prompt(20), 1)
        until(lambda: host.hooks.num_calls("get_finished") > 3)
        assert names_of(host).count("start_load_kv") == 1
        assert reports(host, "new_requests") == []
        host.connector.worker.answers = [([], [1])]
        until(lambda: "wait_for_save" in names_of(host))
        (first,) = reports(host, "new_requests")
        assert (first.computed_position, first.num_scheduled_tokens) == (8, 12)
        with pytest.raises(ExecutorDiedError):  # page 0 was never filled: the payload model sees it
            handle.result(WAIT_S)
    announced = [detail[1] for name, _, detail in calls_of(host) if name == "get_finished"]
    assert [ids for ids in announced if ids] == [[1]]
    assert names_of(host).count("query") == 1


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("zero-async", RuntimeError),
        ("whole-prompt", RuntimeError),
        ("query-raises", OSError),
        ("metadata", TypeError),
        ("finished-raises", OSError),
        ("unknown-saved", KeyError),
        ("unknown-loaded", KeyError),
        ("layer-raises", OSError),
        ("stream-raises", (StreamError, DeviceError)),  # in host memory, on a device
    ],
)
def test_broken_rules_kill_the_executor(
    rule: str, cause: type[Exception] | tuple[type[Exception], ...]
) -> None:
    with engine(rule) as host:
        handles = [host.submit(prompt(10, seed), 3) for seed in range(3)]
        until(lambda: host.error is not None)
        with pytest.raises(ExecutorDiedError):
            handles[-1].result(WAIT_S)
        assert isinstance(host.error, cause)
        with pytest.raises(ExecutorDiedError):
            host.submit(prompt(10), 3).result(WAIT_S)


def test_a_repeated_saved_id_kills_the_executor() -> None:
    with engine("keep") as host:
        host.connector.worker.rule = "twice"
        host.submit(prompt(10), 1).result(WAIT_S)
        until(lambda: host.error is not None)
        assert isinstance(host.error, KeyError)


def test_without_overlap_a_raising_forward_fails_its_requests_until_the_budget_is_spent() -> None:
    with engine("layer-raises", overlap=False, error_budget=1) as host:
        with pytest.raises(ForwardFailedError, match="layer-raises"):
            host.submit(prompt(10), 3).result(WAIT_S)
        until(lambda: host.stats().num_iterations == 1 and host.stats().num_available_blocks == 32)
        assert host.error is None
        assert "request_finished" not in names_of(host)
        assert "wait_for_save" not in names_of(host)
        with pytest.raises(ExecutorDiedError):
            host.submit(prompt(10), 3).result(WAIT_S)


def test_cancellation_frees_pages_without_a_callback() -> None:
    gate = threading.Event()

    def probe(point: str, request_ids: tuple[int, ...]) -> None:
        if point == "bound":
            assert gate.wait(WAIT_S)

    with engine(probe=probe) as host:
        handle = host.submit(prompt(10), 100)
        host.cancel(handle)
        gate.set()
        with pytest.raises(RequestCancelledError):
            handle.result(WAIT_S)
        other = host.submit(prompt(10, seed=2), 2).result(WAIT_S)
        assert len(other.tokens) == 2
        until(lambda: host.stats().num_available_blocks == 32)
        host.allocator.check_integrity()
    finished = [detail[0] for name, _, detail in calls_of(host) if name == "request_finished"]
    assert finished == [2]


def test_graphs_replay_single_token_batches_without_layer_hooks() -> None:
    with engine(cuda_graphs=True) as host:
        host.submit(prompt(17), 3).result(WAIT_S)
        host.submit(prompt(17), 1).result(WAIT_S)  # all but one token on the device
    names = names_of(host)
    assert names.count("wait_for_layer_load") == 2
    assert names.count("wait_for_save") == 4
    assert names.count("forward_callable") == 5


@pytest.mark.parametrize("overlap", [True, False])
def test_a_skipped_forward_is_made_up_without_deltas_or_query(overlap: bool) -> None:
    skipped = {1, 3}
    with engine(overlap=overlap) as whole:
        right = whole.submit(prompt(10), 4).result(WAIT_S)
    with engine(overlap=overlap, skip_forward=skipped.__contains__) as host:
        assert host.submit(prompt(10), 4).result(WAIT_S).tokens == right.tokens
    names = names_of(host)
    assert (names.count("start_load_kv"), names.count("wait_for_save")) == (6, 4)
    assert names.count("query") == 1
    (first,) = reports(host, "new_requests")
    again = reports(host, "cached_requests")[0]
    assert (first.computed_position, first.num_scheduled_tokens) == (0, 10)
    assert (again.computed_position, again.num_scheduled_tokens) == (0, 10)
    assert (again.new_tokens, again.new_block_ids) == ([], [])


def test_probes_pass_in_the_order_of_an_iteration() -> None:
    points: list[tuple[str, tuple[int, ...]]] = []
    with engine("nothing", overlap=False, probe=lambda *seen: points.append(seen)) as host:
        host.submit(prompt(10), 1).result(WAIT_S)
        until(lambda: len(points) == 4)
    assert points == [("bound", (1,)), ("forward", (1,)), ("launched", (1,)), ("iteration", ())]


def test_a_hook_that_raises_at_shutdown_leaves_nobody_waiting() -> None:
    host = engine("finished-raises", epoch="E1")  # E1 calls request_finished on cancellation
    running, waiting = host.submit(prompt(10), 100), host.submit(prompt(10), 100)
    until(lambda: host.stats().num_forwards > 0)
    host.shutdown()
    for handle in (running, waiting):
        with pytest.raises(ExecutorDiedError, match="finished-raises"):
            handle.result(WAIT_S)
    assert isinstance(host.error, OSError)


def test_shutdown_ends_what_is_left_and_every_thread() -> None:
    host = engine("async")
    waiting = host.submit(prompt(20), 3)
    until(lambda: host.hooks.num_calls("get_finished") > 0)
    host.shutdown()
    host.shutdown()
    with pytest.raises(RequestCancelledError, match="shutdown"):
        waiting.result(WAIT_S)
    with pytest.raises(ExecutorDiedError, match="stopped"):
        host.submit(prompt(5), 1).result(WAIT_S)
    left = {thread.name for thread in threading.enumerate()}
    assert not left & {"executor", "stream-M", "stream-X", "stream-C"}

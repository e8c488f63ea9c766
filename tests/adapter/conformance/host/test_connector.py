import threading
from typing import Any

import pytest

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.errors import ConnectorContractError
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.llm_args import KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams
from tests.adapter.conformance.host.connectors import CALLS, connector_config

MEETING = threading.Barrier(2)


class MeetingScheduler:
    def __init__(self, llm_args: Any) -> None:
        MEETING.wait(10)


class MeetingWorker:
    def __init__(self, llm_args: Any) -> None:
        MEETING.wait(10)

    def register_forward_pass_callable(self) -> None:
        return None


def port(rule: str, **options: Any) -> ConnectorPort:
    config = connector_config("Recording", f"rule://{rule}")
    arguments = LlmArgs("model", kv_connector_config=config)
    return ConnectorPort.construct(arguments, HookRecorder(), HostOptions(**options))


def request() -> HostRequest:
    made = RequestParams(tuple(range(20)), 4)
    return HostRequest(3, made, RequestHandle(3), None, tokens=list(made.prompt), tables=[[1, 2]])


def test_both_classes_are_constructed_at_the_same_time() -> None:
    config = KvCacheConnectorConfig(
        connector_module=__name__,
        connector_scheduler_class="MeetingScheduler",
        connector_worker_class="MeetingWorker",
    )
    arguments = LlmArgs("model", kv_connector_config=config)
    made = ConnectorPort.construct(arguments, HookRecorder(), HostOptions())
    assert isinstance(made.scheduler, MeetingScheduler)
    assert made.present


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("zero-async", r"\(0, True\)"),
        ("whole-prompt", "at least one token must be left"),
        ("negative", ">= 0"),
        ("bool-count", "expected"),
        ("int-flag", "expected"),
        ("no-pair", "expected"),
    ],
)
def test_answers_that_kill_the_real_host_raise(rule: str, message: str) -> None:
    with pytest.raises(ConnectorContractError, match=message):
        port(rule).query(request(), 8)


def test_good_answers_pass() -> None:
    assert port("sync").query(request(), 8) == (8, False)
    assert port("async").query(request(), 8) == (8, True)
    with pytest.raises(ConnectorContractError, match="20"):
        port("sync").query(request(), 12)


def test_metadata_is_pickled_on_the_way() -> None:
    made = port("nothing")
    made.build_and_bind([])
    bound = made.worker.get_connector_meta()
    assert bound == {"iteration": 4}  # scheduler, worker, callable, build
    with pytest.raises(TypeError, match="pickle"):
        port("metadata").build_and_bind([])


def test_each_call_gets_a_fresh_view() -> None:
    made, state = port("nothing"), request()
    made.query(state, 0)
    made.query(state, 0)
    views = [detail[0] for name, _, detail in CALLS["rule://nothing"] if name == "query"]
    assert views[0] is not views[1]


def test_answers_at_the_end_are_checked() -> None:
    with pytest.raises(ConnectorContractError, match="expected a bool"):
        port("finished-int").request_finished(request())
    assert port("keep").request_finished(request()) is True
    made = port("nothing")
    made.worker.answers = [([4], [])]
    assert made.get_finished([4], [5]) == ([4], [])
    made.worker.answers = [[1, 2, 3]]
    with pytest.raises(ConnectorContractError, match="two lists"):
        made.get_finished([], [])


def test_the_first_epoch_has_no_initialization_wait() -> None:
    class Pool:
        shape = (1,)

    for epoch, expected in (("E1", 0), ("E2", 1)):
        made = port("epoch", epoch=epoch)
        made.register(Pool())
        names = [name for name, _, _ in CALLS["rule://epoch"]]
        assert names.count("wait_for_initialization") == expected
        assert names.count("register_kv_caches") == 1


def test_without_a_connector_every_answer_is_no() -> None:
    none = ConnectorPort.construct(LlmArgs("model"), HookRecorder(), HostOptions())
    state = request()
    assert not none.present
    assert none.query(state, 0) == (0, False)
    assert none.request_finished(state) is False
    assert none.get_finished([], []) == ([], [])
    none.register(None)
    none.build_and_bind(None)
    none.shutdown()
    assert none.recorder.as_rows() == []

"""What one iteration does; the whole loop is in test_executor, ends in test_lifecycles."""

from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.errors import (
    ConnectorFailedError,
    ExecutorDiedError,
    ForwardFailedError,
)
from adapter.conformance.host.iteration import Parts
from tests.adapter.conformance.host.lifecycles import WAIT_S, engine, prompt, until
from tests.adapter.conformance.host.threadcomm import meet

pytestmark = pytest.mark.torch


def test_ranks_of_attention_dp_are_alone_with_their_connectors() -> None:
    _, comm = meet(2)
    anything: Any = None
    parts = Parts(anything, anything, anything, anything, anything, comm)
    assert parts.control is comm
    alone = Parts(anything, anything, anything, anything, anything, comm, adp=True).control
    assert (alone.rank, alone.size) == (1, 1)


def test_a_forward_that_raises_fails_its_requests_and_not_the_connector() -> None:
    def probe(point: str, request_ids: tuple[int, ...]) -> None:
        if point == "forward" and 1 in request_ids:
            raise OSError("the model's own")

    # A raising hook would be fatal in this epoch: this is none.
    with engine(epoch="E3", overlap=False, probe=probe) as host:
        with pytest.raises(ForwardFailedError, match="the model's own"):
            host.submit(prompt(10), 2).result(WAIT_S)
        assert len(host.submit(prompt(10), 2).result(WAIT_S).tokens) == 2
        until(lambda: host.stats().num_available_blocks == 32)
        assert host.error is None


@pytest.mark.parametrize("rule", ["layer-raises", "load-raises", "finished-raises"])
@pytest.mark.parametrize("overlap", [True, False])
def test_in_late_epochs_any_raising_hook_is_fatal(rule: str, overlap: bool) -> None:
    with engine(f"rule://{rule}", epoch="E3", overlap=overlap) as host:
        with pytest.raises(ExecutorDiedError, match="KV connector failed"):
            host.submit(prompt(10), 1).result(WAIT_S)
        assert isinstance(host.error, ConnectorFailedError)
        assert isinstance(host.error.__cause__, OSError)


@pytest.mark.parametrize("rule", ["sync", "async"])
def test_only_a_load_that_the_forward_needs_excuses_a_hook_that_takes_long(rule: str) -> None:
    with engine(f"rule://{rule}") as host:
        host.submit(prompt(20), 1)
        until(lambda: host.hooks.num_calls("get_finished") > 0)
    rows = [row for row in host.hooks.as_rows() if row["hook"] == "start_load_kv"]
    assert rows[0]["with_load"] == (rule == "sync")


def test_pages_are_spoiled_behind_the_metadata_and_before_the_loads() -> None:
    seen: list[tuple[str, bool]] = []
    with engine(num_blocks=3, overlap=False) as host:
        worker = host.connector.worker

        def look_in(name: str) -> None:
            original = getattr(worker, name)

            def call(*arguments: Any) -> None:
                host.device.main.synchronize(WAIT_S)
                seen.append((name, bool((host.pool == 0xFF).all())))
                original(*arguments)

            setattr(worker, name, call)

        look_in("bind_connector_meta")
        look_in("start_load_kv")
        for seed in range(2):  # each takes the whole pool
            host.submit(prompt(24, seed), 1).result(WAIT_S)
    spoiled = {name: [is_so for called, is_so in seen if called == name] for name, _ in seen}
    # A page that was freed keeps its bytes for as long as the contract lets somebody read it.
    assert spoiled == {"bind_connector_meta": [True, False], "start_load_kv": [True, True]}

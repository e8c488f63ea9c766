import threading

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.connector import ConnectorPort  # noqa: E402
from adapter.conformance.host.device import Device  # noqa: E402
from adapter.conformance.host.forward import ForwardEntry, TokenCell  # noqa: E402
from adapter.conformance.host.hooks import HookRecorder  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.payload import PayloadModel  # noqa: E402
from adapter.pages import find_pool  # noqa: E402

pytestmark = pytest.mark.torch

WAIT_S = 10.0
TOKENS = list(range(50, 60))


@pytest.fixture
def device():  # type: ignore[no-untyped-def]  # noqa: ANN201
    made = Device(PayloadModel(4), 6)
    yield made
    made.close()


def no_connector() -> ConnectorPort:
    return ConnectorPort(None, None, HookRecorder(), HostOptions())


def entry(device: Device) -> ForwardEntry:
    memo = device._model.new_memo(TOKENS)
    return ForwardEntry(0, 10, TOKENS, ((3, 2, 1),), True, True, memo)


def test_the_pool_is_shareable_and_starts_poisoned(device: Device) -> None:
    pool = find_pool(device.pool.data_ptr(), device.pool.numel())
    assert pool is not None
    assert (pool.view == 0xFF).all()


def test_a_forward_runs_on_x_and_samples_on_m(device: Device) -> None:
    gate = threading.Event()
    device.execution.enqueue(lambda: gate.wait(WAIT_S))
    part, cell = entry(device), TokenCell()
    device.launch([part], no_connector(), layer_hooks=True)
    sampled = device.sample([part], [cell])
    assert not sampled.query()
    gate.set()
    sampled.synchronize(WAIT_S)
    assert cell.get() >= 0
    assert (device.pool[3] != 0xFF).any()


def test_a_forward_waits_for_work_on_m(device: Device) -> None:
    gate, order = threading.Event(), []
    device.main.enqueue(lambda: gate.wait(WAIT_S))
    device.main.enqueue(lambda: order.append("load"))
    device.launch([entry(device)], no_connector(), layer_hooks=True)
    device.execution.enqueue(lambda: order.append("forward done"))
    gate.set()
    device.main.synchronize(WAIT_S)
    device.execution.synchronize(WAIT_S)
    assert order == ["load", "forward done"]


def test_poison_waits_for_queued_forwards_and_loads_wait_for_poison(device: Device) -> None:
    gate, seen = threading.Event(), []
    device.launch([entry(device)], no_connector(), layer_hooks=True)
    device.execution.enqueue(lambda: seen.append(bool((device.pool[3] == 0xFF).all())))
    device.execution.enqueue(lambda: gate.wait(WAIT_S))
    device.poison([[3]])
    device.main.enqueue(lambda: seen.append(bool((device.pool[3] == 0xFF).all())))
    gate.set()
    device.main.synchronize(WAIT_S)
    assert seen == [False, True]


def test_a_partial_copy_is_ordered_against_x_alone(device: Device) -> None:
    gate = threading.Event()
    device.main.enqueue(lambda: gate.wait(WAIT_S))
    device.pool[0].fill_(7)
    device.copy_page(0, 5)
    device.execution.synchronize(WAIT_S)  # though M is stuck
    assert (device.pool[5] == 7).all()
    gate.set()


def test_main_does_not_wait_for_a_partial_copy(device: Device) -> None:
    gate = threading.Event()
    device.execution.enqueue(lambda: gate.wait(WAIT_S))
    device.copy_page(0, 5)
    device.main.synchronize(WAIT_S / 2)  # though the copy has not even begun
    assert not device.execution.query()
    gate.set()
    device.execution.synchronize(WAIT_S)


def test_warm_up_runs_the_callable_and_leaves_no_page_behind(device: Device) -> None:
    calls = []
    port = no_connector()
    port._forward_callable = lambda: calls.append(1)
    device.warm_up(port, WAIT_S)
    assert calls == [1]
    assert (device.pool == 0xFF).all()


def test_poison_is_nan_for_float_pools() -> None:
    from adapter.conformance.host.model import Transformer
    from adapter.conformance.host.weights import TINY, make_weights

    made = Device(Transformer(TINY, make_weights(TINY), 8), 2)
    assert made.pool.shape == (2, 3, 2, 2 * 8 * 16)
    assert torch.isnan(made.pool).all()
    made.close()


def test_poison_waits_for_reads_on_m(device: Device) -> None:
    """Bytes that a connector saves on M are those of the forward before (host contract §5)."""
    gate, seen = threading.Event(), []
    device.pool[3].fill_(7)
    device.main.enqueue(lambda: gate.wait(WAIT_S))
    device.main.enqueue(lambda: seen.append(int(device.pool[3].max())))
    device.poison([[3]])
    gate.set()
    device.main.synchronize(WAIT_S)
    assert seen == [7]
    assert (device.pool[3] == 0xFF).all()

import inspect
from typing import Any

import numpy as np
import pytest

from protocol.device import interface
from protocol.device.host import HostDevice
from protocol.device.interface import Device, DeviceError, Event, batch_of
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.streams import SimulatedEvent


def test_a_batch_holds_columns_of_its_own() -> None:
    batch = batch_of([(1, 2, 3), (40, 50, 60)])
    assert batch.targets.tolist() == [1, 40]
    assert batch.sources.tolist() == [2, 50]
    assert batch.sizes.tolist() == [3, 60]
    assert {column.dtype for column in (batch.targets, batch.sources, batch.sizes)} == {
        np.dtype(np.int64)
    }
    assert all(column.flags.c_contiguous for column in (batch.targets, batch.sources))
    assert batch.num_bytes == 63
    assert batch_of([]).num_bytes == 0


def test_an_error_says_what_was_tried_and_what_came_of_it() -> None:
    error = DeviceError("cudaErrorIllegalAddress", "copy", is_sticky=True)
    assert str(error) == "copy: cudaErrorIllegalAddress"
    assert (error.code, error.is_sticky) == ("cudaErrorIllegalAddress", True)
    assert not DeviceError("x", "y").is_sticky


IMPLEMENTATIONS: tuple[type[Device], ...] = (HostDevice, SimulatedDevice)
"""That they fit is for the type checker to say, here; names of arguments are compared below."""


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_each_implementation_takes_what_the_interface_says(implementation: type[Any]) -> None:
    assert hasattr(implementation, "numa_node")
    for name, wanted in inspect.getmembers(Device, inspect.isfunction):
        if name.startswith("_"):
            continue
        asked = [p.name for p in inspect.signature(wanted).parameters.values()]
        taken = list(inspect.signature(getattr(implementation, name)).parameters.values())
        assert [p.name for p in taken][: len(asked)] == asked, name
        assert all(p.default is not p.empty for p in taken[len(asked) :]), name


def test_a_simulated_event_is_an_event() -> None:
    assert isinstance(SimulatedEvent(), Event)


def test_a_handle_is_as_long_as_cudas() -> None:
    assert interface.HANDLE_BYTES == 64

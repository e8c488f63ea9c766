"""The memory estimation of bring-up (host contract §4, step 4).

A temporary pool runs a forward, without the connector but for the forward callable, which belongs
to the model; then the pool goes and the final one takes its place.

Must not know: requests, the connector's rules. Main thread.
"""

from __future__ import annotations

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.device import Device
from adapter.conformance.host.forward import ForwardModel
from adapter.conformance.host.memory import v1_memory


def estimate(model: ForwardModel, final: Device, port: ConnectorPort, timeout_s: float) -> None:
    """Run a dummy request on a temporary pool, on the same hardware.

    Args:
        model: Bound to the temporary pool meanwhile and to the final one afterwards.
        final: Of the final memory; none of it is touched.
        port: Its forward callable is called.
        timeout_s: Longest wait for the device in seconds.
    """
    hardware = final.hardware
    memory = v1_memory(model, 1, private=True, hardware=hardware)
    temporary = Device(model, memory, hardware)
    try:
        temporary.warm_up(port, timeout_s)
    finally:
        temporary.close()
        model.bind_layers(final.memory.layers)

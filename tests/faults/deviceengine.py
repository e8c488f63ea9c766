"""An engine of the wire tests whose pool lies in the memory of a simulated device.

The process that makes one is the exporter; the server's copier of that device opens the pool by its
handle. ``python -m tests.faults.deviceengine URL SIDE MODEL`` is one that registers, sends a STORE
of its whole pool, says ``ready`` and does nothing further, to be killed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.device.simulated import driver, settings
from protocol.layout import CudaIpcMemory, Memory, Region, ShardPool
from protocol.messages import Done, RegisterKvCache, RegisterKvCacheReply, Unregister
from protocol.namespace import Namespace
from tests.faults.bystander import fill, submit_store
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess


class DeviceEngine(Engine):
    """Registers device memory; whatever else it says of it is the test's choice.

    Args:
        url: of the server.
        side_path: of its side socket.
        namespace: its own.
        device: number of the device.
        num_pages: of its pool.

    Attributes:
        pages: uint8[num_pages, page_bytes], the very bytes on the device.
        memory: how it describes its pool; a test may say otherwise before it registers.
        regions: likewise.
    """

    def __init__(
        self,
        url: str,
        side_path: str,
        namespace: Namespace,
        device: int = 0,
        num_pages: int = 64,
    ) -> None:
        super().__init__(url, side_path, namespace, num_pages)
        current = driver.current()
        assert current is not None
        gpu = current.device(device)
        made = current.allocation_at(gpu.malloc(num_pages * self.page_bytes))
        assert made is not None
        self.allocation = made
        self.pages = made.array.reshape(num_pages, self.page_bytes)
        exported = gpu.export(made.address)
        self.memory = CudaIpcMemory(
            handle=exported.handle,
            device_uuid=settings.uuid_of(device),
            base_offset_bytes=0,
            size_bytes=made.num_bytes,
        )
        self.regions = (
            Region(offset_bytes=0, size_bytes=self.page_bytes, stride_bytes=self.page_bytes),
        )

    def register(self, memory: Memory | None = None) -> RegisterKvCacheReply:
        """Registers what ``memory``, ``regions`` and ``num_pages`` say, and maps what it gets."""
        pool = ShardPool(shard=self.shard, num_pages=self.num_pages, regions=self.regions)
        body = RegisterKvCache(
            namespace=self.namespace, rank=self.rank, memory=memory or self.memory, pools=(pool,)
        )
        reply = self.wire.call(body, RegisterKvCacheReply, 30)
        self.session = reply.session
        while len(self.extents) < reply.extents:
            self.take_side_packet()
        self.pump_while_waiting()
        return reply

    def close(self) -> None:
        """Leaves its memory behind for whoever has it open, as a process that ends does."""
        super().close()
        self.allocation.free()


@contextmanager
def on_device(
    server: ServerProcess, namespace: Namespace, device: int = 0, register: bool = True
) -> Iterator[DeviceEngine]:
    """An engine that leaves at the end.

    Args:
        server: where.
        namespace: its own.
        device: number of the device.
        register: False for a test that registers it itself.
    """
    engine = DeviceEngine(server.url, server.side_path, namespace, device)
    try:
        if register:
            engine.register()
        yield engine
        if engine.session and server.process.poll() is None:
            engine.wire.call(Unregister(session=engine.session), Done)
    finally:
        engine.close()


def main(url: str, side_path: str, model: str) -> None:
    """An engine in the middle of a save."""
    engine = DeviceEngine(url, side_path, make_namespace(model=model))
    engine.register()
    fill(engine, 5)
    submit_store(engine, make_keys(5, 64), list(range(64)), 900)
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])

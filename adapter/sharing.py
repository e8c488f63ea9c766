"""What the server is given to read: the pool itself, or a staging ring that pages go through.

A pool in a sealed memfd is mapped by the server, one in a device allocation of its own is opened
by a handle. All other memory (virtual or managed memory of a device, private host memory) is
copied, page by page, into a ring of this process's own. ``auto`` picks the first that is possible
and says why; a handle that the server cannot open after all is replaced by the ring as well.

Must not know: sockets, requests. Runs in: the main thread, at pool registration; ``staged`` also
in the keeper's thread, between two stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from adapter.geometry import Geometry
from adapter.pagememory import PageMemory
from adapter.refusals import UncachedError
from adapter.ring import StagingRing
from protocol.device.interface import DeviceError, MemoryKind
from protocol.layout import CudaIpcMemory, Region, ShardPool

AUTO: Final = "auto"
IPC: Final = "ipc"
RING: Final = "ring"
CHOICES: Final = (AUTO, IPC, RING)
"""Valid values of the setting: what is possible, the pool itself or nothing, always the ring."""

_NOT_EXPORTED: Final = {
    MemoryKind.VIRTUAL: "virtual memory of a device cannot be exported by a handle",
    MemoryKind.MANAGED: "managed memory cannot be exported by a handle",
    MemoryKind.HOST: "the memory is the host's",
}


@dataclass(frozen=True)
class Shared:
    """What is registered.

    Attributes:
        pools: where the pages of each shard lie in the memory.
        says: one line for the log: what was picked and why.
        fd: sealed memfd of the memory, not the caller's to close; None for a handle.
        num_bytes: its length.
        handle: device memory, in place of ``fd``.
        ring: the memory is this ring, its pages are slots of it; None for the pool itself.
        may_stage: a server that cannot open the handle may be given a ring instead.
    """

    pools: tuple[ShardPool, ...]
    says: str
    fd: int | None = None
    num_bytes: int = 0
    handle: CudaIpcMemory | None = None
    ring: StagingRing | None = None
    may_stage: bool = False


def choose(
    memory: PageMemory, geometry: Geometry, staging: str, *, by_layer: bool = False
) -> Shared:
    """Decides what the server is given, and makes the ring if that is it.

    Args:
        memory: the pages' bytes.
        geometry: of this rank's pages.
        staging: one of ``CHOICES``.
        by_layer: saves go layer by layer, which only the ring takes in.

    Raises:
        UncachedError: there is nothing the server could read: the pool cannot be shared and no
            ring may be used, or none can be had.
    """
    if staging == RING:
        return staged(memory, geometry, "it was asked for")
    if by_layer and staging == AUTO:
        return staged(memory, geometry, "layers are saved while the forward runs")
    if memory.export is not None:
        return _mapped(memory, geometry)
    why = memory.why_private
    if memory.device is not None:
        try:
            return _opened(memory, geometry, may_stage=staging == AUTO)
        except (DeviceError, UncachedError) as error:
            why = str(error)
    if staging == IPC:
        raise UncachedError(f"the pool cannot be shared, and no staging ring may be used: {why}")
    return staged(memory, geometry, why)


def staged(memory: PageMemory, geometry: Geometry, why: str) -> Shared:
    """A ring, in memory that the pool's device can write directly if it is on one.

    Args:
        memory: the pages' bytes.
        geometry: of this rank's pages.
        why: the pool itself is not given.

    Raises:
        UncachedError: no memory is to be had.
    """
    try:
        if memory.device is not None:
            memory.device.bind()
        ring = StagingRing(geometry, device=memory.device)
    except (OSError, DeviceError) as error:
        raise UncachedError(
            f"no staging ring could be made ({error}), and the pool cannot be shared: {why}"
        ) from error
    kind = "" if memory.device is None else "page-locked "
    size = f"{kind}staging ring of {_in_mib(ring.num_bytes)}"
    return Shared(
        pools=ring.shard_pools(geometry.shards),
        says=f"saves go through a {size}: {why}",
        fd=ring.fd,
        num_bytes=ring.num_bytes,
        ring=ring,
    )


def _mapped(memory: PageMemory, geometry: Geometry) -> Shared:
    export = memory.export
    if export is None:
        raise UncachedError(memory.why_private)
    return Shared(
        pools=_pools(geometry, export.regions),
        says=f"the server maps the pool itself, {_in_mib(export.num_bytes)}: it is a sealed memfd",
        fd=export.fd,
        num_bytes=export.num_bytes,
    )


def _opened(memory: PageMemory, geometry: Geometry, *, may_stage: bool) -> Shared:
    """A pool that lies in one allocation of its device.

    Raises:
        DeviceError: the allocation cannot be exported.
        UncachedError: the memory is of another kind, or of several allocations.
    """
    device = memory.device
    if device is None:
        raise UncachedError("the memory is on no device")
    device.bind()
    parts = [part for group in memory.groups for part in group.parts]
    begin = min(part.address for part in parts)
    end = max(part.address + part.span_bytes for part in parts)
    place = device.place(begin)
    if place is None or place.kind is not MemoryKind.DEVICE:
        raise UncachedError(
            "the device does not know the memory" if place is None else _NOT_EXPORTED[place.kind]
        )
    if end > place.base + place.num_bytes:
        raise UncachedError("the pages lie in several allocations")
    exported = device.export(begin)
    offset = begin - exported.base
    if offset < 0 or offset + (end - begin) > exported.num_bytes:
        raise UncachedError("the pages do not lie in what was exported")
    handle = CudaIpcMemory(
        handle=exported.handle,
        device_uuid=exported.device_uuid,
        base_offset_bytes=offset,
        size_bytes=end - begin,
    )
    regions = tuple(
        tuple(
            Region(
                offset_bytes=part.address - begin,
                size_bytes=part.size_bytes,
                stride_bytes=part.stride_bytes,
            )
            for part in group.parts
        )
        for group in memory.groups
    )
    return Shared(
        pools=_pools(geometry, regions),
        says=f"the server reads the pool itself, {_in_mib(end - begin)} of {device.name}: it "
        "lies in one allocation, which was exported",
        num_bytes=end - begin,
        handle=handle,
        may_stage=may_stage,
    )


def _pools(geometry: Geometry, regions: tuple[tuple[Region, ...], ...]) -> tuple[ShardPool, ...]:
    return tuple(
        ShardPool(shard=shard, num_pages=group.num_pages, regions=own)
        for shard, group, own in zip(geometry.shards, geometry.groups, regions, strict=True)
    )


def _in_mib(num_bytes: int) -> str:
    return f"{max(1, round(num_bytes / (1 << 20))):,} MiB"

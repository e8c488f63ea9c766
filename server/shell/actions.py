"""Performs the core's effects and turns reports into its events.

Purpose: the one place where the core's numbers (extents, pools, processes) meet descriptors,
files and sockets. Must not know: ZMQ, why an effect was decided. Runs in: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from protocol import limits, side
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ExtentId, PoolId
from protocol.layout import CudaIpcMemory
from server.copier.wire import Kind
from server.core import effects as fx
from server.core.dispatch import Core
from server.shell import clock, reports
from server.shell.complaints import Complaints
from server.shell.copiers import CopierLink
from server.shell.descriptors import Descriptor
from server.shell.devicecopiers import DeviceCopiers
from server.shell.extent_table import ExtentTable
from server.shell.extents import Allocator, ExtentFile
from server.shell.peers import Drop, Forget, ForgetPool, SideSocket, Tell
from server.shell.porters import Porters
from server.shell.tieractions import TierActions

_log = logging.getLogger("kvkeep.server")


class Actions:
    """Tables of what the effects name, and who does them.

    Args:
        core: told of outcomes.
        allocator: makes and removes extent files.
        sides: the side socket.
        copiers: one link per copier; ``devices`` adds and removes some.
        devices: starts and ends the copiers of devices.
        complaints: counts what goes wrong.
        porters: of lower tiers.
    """

    def __init__(
        self,
        core: Core,
        allocator: Allocator,
        sides: SideSocket,
        copiers: Mapping[fx.CopierId, CopierLink],
        devices: DeviceCopiers,
        complaints: Complaints,
        porters: Porters,
    ) -> None:
        self._core = core
        self._allocator = allocator
        self._sides = sides
        self._copiers = copiers
        self._devices = devices
        self._complaints = complaints
        self._extents = ExtentTable(allocator, copiers, porters.links.values())
        self._tiers = TierActions(core, porters, self._extents, complaints)
        self._pools: dict[tuple[fx.ProcessId, PoolId], Descriptor] = {}
        #: Pools that devices' copiers were asked to open and have not.
        self._opening: dict[fx.PoolHandle, fx.OpenPool] = {}
        self._perform: dict[type[Any], Callable[[Any], None]] = {
            fx.DropProcess: self._drop_process,
            fx.ForgetProcess: lambda effect: self._sides.tell(Forget(effect.process)),
            fx.KeepNamespace: lambda effect: self._allocator.keep_namespace(
                effect.fingerprint, effect.namespace
            ),
            fx.DropNamespace: lambda effect: self._allocator.drop_namespace(effect.fingerprint),
            fx.CreateExtent: lambda effect: self._extents.create(
                effect.geometry, clock.now_ns(), effect.numa_node
            ),
            fx.RemoveExtent: lambda effect: self._extents.remove(effect.extent, clock.now_ns()),
            fx.GiveExtent: self._give_extent,
            fx.TakeExtent: self._take_extent,
            fx.StartCopier: self._start_copier,
            fx.StopCopier: self._stop_copier,
            fx.OpenPool: self._open_pool,
            fx.ClosePool: self._close_pool,
            fx.DropPoolOffer: self._drop_pool_offer,
            fx.StartCopy: self._start_copy,
            fx.VoidRecords: self._void_records,
            fx.FindSalt: self._find_salt,
            fx.WriteRecords: lambda effect: self._extents[effect.extent].write(
                effect.slots, effect.records
            ),
            fx.KeepQuotas: self._keep_quotas,
            fx.KeepOwed: lambda effect: self._allocator.keep_owed(
                effect, porters.stores[effect.tier]
            ),
            fx.DropOwed: lambda effect: self._allocator.drop_owed(
                effect, porters.stores[effect.tier]
            ),
            **self._tiers.performers,
        }
        self._apply: dict[type[Any], Callable[[Any, int], None]] = {
            reports.ProcessJoined: lambda report, now_ns: self._core.process_joined(
                report.process, report.token, report.instance, now_ns, report.pid
            ),
            reports.PoolOffered: self._pool_offered,
            reports.ProcessQuiet: lambda report, now_ns: self._core.process_quiet(
                report.process, now_ns
            ),
            reports.ProcessExited: self._process_exited,
            reports.PartyGone: lambda report, now_ns: self._core.party_gone(report.party, now_ns),
            reports.ExtentCreated: self._extent_created,
            reports.CopierReady: self._copier_ready,
            reports.CopierAnswered: self._copier_answered,
            reports.CopierLost: self._copier_lost,
            reports.CopierStuck: self._copier_stuck,
            reports.CopierGone: lambda report, now_ns: self._core.copier_gone(
                report.copier, report.life, now_ns
            ),
            reports.CopierRefused: self._copier_refused,
            reports.CopierEnded: self._copier_ended,
            reports.DrainAsked: lambda _, now_ns: self._core.begin_drain(now_ns),
            reports.Here: lambda _, now_ns: None,
            **self._tiers.appliers,
        }

    def adopt(self, file: ExtentFile, now_ns: int) -> None:
        """Takes over an extent of a predecessor that the core has kept. Before the loop runs."""
        self._extents.created(file, now_ns)

    def perform(self, effect: fx.Effect) -> None:
        """Does one effect other than SendReply.

        Args:
            effect: from ``Core.take_effects``, in its order.
        """
        self._perform[type(effect)](effect)

    def apply(self, report: reports.Report, now_ns: int) -> None:
        """Tells the core of one report.

        Args:
            report: from a thread of the shell.
            now_ns: the clock.
        """
        self._apply[type(report)](report, now_ns)

    def figures(self) -> dict[str, int]:
        """For STATS."""
        return self._extents.figures()

    def silent_s(self, now_ns: int) -> dict[int, float]:
        """By copier, for how long it has had work and answered nothing, in seconds."""
        return {copier: link.silent_s(now_ns) for copier, link in self._copiers.items()}

    def deadline_ns(self) -> int | None:
        """When ``check`` has something to do, or None."""
        due = [self._extents.deadline_ns(), self._tiers.deadline_ns()]
        due += [link.deadline_ns() for link in self._copiers.values()]
        return min((ns for ns in due if ns is not None), default=None)

    def check(self, now_ns: int) -> None:
        """Kills children that stopped answering; makes extents that waited long enough."""
        self._extents.check(now_ns)
        self._tiers.check(now_ns)
        for copier, link in self._copiers.items():
            if link.check(now_ns):
                text = f"copier {self._devices.name(copier)} (pid {link.pid}) killed"
                self._complaints.note("copier_wedged", text)

    def close(self) -> None:
        """Gives everything back, once no thread reports any more."""
        for link in self._copiers.values():
            link.detach()
        self._tiers.close()
        for descriptor in self._pools.values():
            descriptor.give_back()
        self._pools.clear()
        self._extents.close()

    # --- effects --------------------------------------------------------------------------------

    def _keep_quotas(self, effect: fx.KeepQuotas) -> None:
        self._allocator.keep_quotas(effect)

    def _drop_process(self, effect: fx.DropProcess) -> None:
        error = side.SideError(
            code=int(effect.code), message=effect.reason[: limits.MAX_TEXT_CHARS]
        )
        self._sides.tell(Drop(effect.process, side.pack(error)))

    def _give_extent(self, effect: fx.GiveExtent) -> None:
        cut = effect.geometry
        packet = side.ExtentGiven(
            session=effect.session,
            extent=cut.extent,
            shard=cut.shard,
            num_slots=cut.num_slots,
            slot_bytes=cut.slot_bytes,
            payload_bytes=cut.payload_bytes,
            data_offset_bytes=cut.data_offset_bytes,
            file_bytes=cut.file_bytes,
        )
        readable = self._extents[cut.extent].readable.borrow()
        self._sides.tell(Tell(effect.process, side.pack(packet), readable, cut.fingerprint))

    def _take_extent(self, effect: fx.TakeExtent) -> None:
        packet = side.ExtentTaken(session=effect.session, extent=effect.extent)
        self._sides.tell(Tell(effect.process, side.pack(packet)))

    def _start_copier(self, effect: fx.StartCopier) -> None:
        try:
            self._devices.start(effect.copier, effect.device_uuid)
        except Exception as error:  # noqa: BLE001 - no thread, no socket: who waits must hear of it
            reason = f"the device's copier cannot be looked after: {error}"
            self._complaints.note("copier_refused", reason, error)
            self._core.copier_refused(effect.copier, reason, clock.now_ns())

    def _stop_copier(self, effect: fx.StopCopier) -> None:
        if not self._devices.retire(effect.copier):
            self._core.copier_ended(effect.copier, clock.now_ns())

    def _open_pool(self, effect: fx.OpenPool) -> None:
        now_ns, memory = clock.now_ns(), effect.memory
        link = self._copiers[effect.copier]
        if isinstance(memory, CudaIpcMemory):
            self._opening[effect.handle] = effect
            link.open_handle(effect.handle, memory, now_ns)
            return
        descriptor = self._pools.get((effect.process, PoolId(memory.pool)))
        if descriptor is None:
            self._core.pool_opened(effect.handle, "the descriptor is gone", now_ns)
            return
        link.open_pool(effect.handle, descriptor, memory.size_bytes, now_ns)

    def _close_pool(self, effect: fx.ClosePool) -> None:
        now_ns = clock.now_ns()
        self._copiers[effect.copier].close_pool(effect.handle, now_ns)
        self._extents.leave(effect.copier, effect.handle, now_ns)

    def _drop_pool_offer(self, effect: fx.DropPoolOffer) -> None:
        descriptor = self._pools.pop((effect.process, effect.pool), None)
        if descriptor is not None:
            self._allocator.close(descriptor)
            self._sides.tell(ForgetPool(effect.process, effect.pool))

    def _find_salt(self, effect: fx.FindSalt) -> None:
        slots, generations = self._extents[effect.extent].of_salt(
            effect.begin, effect.end, effect.salt
        )
        self._core.salt_found(effect.search, slots, generations, clock.now_ns())

    def _void_records(self, effect: fx.VoidRecords) -> None:
        file = self._extents[effect.extent]
        (file.reuse if effect.reused else file.void)(effect.slots)

    def _start_copy(self, effect: fx.StartCopy) -> None:
        self._copiers[effect.copier].start(effect, clock.now_ns())

    # --- reports --------------------------------------------------------------------------------

    def _pool_offered(self, report: reports.PoolOffered, now_ns: int) -> None:
        key = (report.process, report.pool)
        if key in self._pools:
            report.descriptor.give_back()
            raise RequestError(ErrorCode.INTERNAL, f"pool {key} was reported twice")
        self._pools[key] = report.descriptor
        self._core.pool_offered(report.process, report.pool, report.size_bytes)

    def _process_exited(self, report: reports.ProcessExited, now_ns: int) -> None:
        # The core drops the descriptors, each once the copier has let go of its pool.
        self._core.process_exited(report.process, now_ns)

    def _extent_created(self, report: reports.ExtentCreated, now_ns: int) -> None:
        if report.file is not None:
            self._extents.created(report.file, now_ns)
            if report.file.is_far:
                self._complaints.note("extent_far", _far(report.file))
        self._core.extent_created(report.extent, report.error, now_ns)

    def _copier_ready(self, report: reports.CopierReady, now_ns: int) -> None:
        link = self._copiers[report.copier]
        told = (report.device_bytes, report.numa_node)
        link.attach(report.channel, report.pid, now_ns, *told)
        self._core.copier_ready(report.copier, now_ns)

    def _copier_lost(self, report: reports.CopierLost, now_ns: int) -> None:
        if not self._devices.is_retired(report.copier):
            text = f"copier {self._devices.name(report.copier)} ended; another is started"
            self._complaints.note("copier_lost", text)
        self._copiers[report.copier].detach()
        self._forget_mappings(report.copier, now_ns)
        self._core.copier_lost(report.copier, now_ns)

    def _copier_stuck(self, report: reports.CopierStuck, now_ns: int) -> None:
        name = self._devices.name(report.copier)
        text = f"copier {name} (pid {report.pid}) was killed and does not end"
        self._complaints.note("copier_stuck", text)
        self._copiers[report.copier].detach()
        # Memory of an extent that goes now is free only at its end; making others wait for that
        # would be worse.
        self._forget_mappings(report.copier, now_ns)
        self._core.copier_stuck(report.copier, report.life, now_ns)

    def _copier_refused(self, report: reports.CopierRefused, now_ns: int) -> None:
        self._complaints.note("copier_refused", report.reason)
        self._core.copier_refused(report.copier, report.reason, now_ns)

    def _copier_ended(self, report: reports.CopierEnded, now_ns: int) -> None:
        self._forget_mappings(report.copier, now_ns)
        self._devices.ended(report.copier)
        self._core.copier_ended(report.copier, now_ns)

    def _forget_mappings(self, copier: fx.CopierId, now_ns: int) -> None:
        for handle in [one for one, asked in self._opening.items() if asked.copier == copier]:
            del self._opening[handle]
        self._extents.copier_lost(copier, now_ns)

    def _copier_answered(self, report: reports.CopierAnswered, now_ns: int) -> None:
        answer = report.answer
        self._copiers[report.copier].answered(answer, now_ns)
        if answer.error is not None:
            self._complaints.note("copier_error", f"{answer.kind.name}: {answer.error}")
        if answer.kind == Kind.COPY:
            self._core.copy_done(fx.JobId(answer.number), answer.error, now_ns)
        elif answer.kind in (Kind.MAP_POOL, Kind.OPEN_POOL):
            handle = fx.PoolHandle(answer.number)
            asked = self._opening.pop(handle, None)
            if asked is not None and answer.error is None:
                # Only now: an arena has many extents, none of which a false handle needs.
                self._extents.serve(asked.copier, handle, asked.fingerprint, now_ns)
            self._core.pool_opened(handle, answer.error, now_ns)
        elif answer.kind == Kind.UNMAP_POOL:
            self._core.pool_closed(fx.PoolHandle(answer.number), now_ns)
        elif answer.kind == Kind.UNMAP_EXTENT:
            link = self._copiers[report.copier]
            self._extents.unmapped(link, ExtentId(answer.number), now_ns)


def _far(file: ExtentFile) -> str:
    """Says that an extent lies on another node than it should."""
    return (
        f"extent {file.geometry.extent} lies on NUMA node {file.numa_node}, not on "
        f"{file.wanted_node} near its GPU: that node has no memory left, the server may not use "
        "it, or was given a memory policy (numactl)"
    )

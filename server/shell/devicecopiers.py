"""The supervisors of devices' copiers, which come and go while the server runs.

Purpose: one supervisor for each device that the core wants served, started and retired without
making the loop wait; what they report with is made once and used again, so that however many come
and go, nothing grows. Must not know: which pools there are, why a copier ends. Runs in: the loop
thread; at the end, the main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from server.core.effects import HOST_COPIER, CopierId
from server.shell.copiers import CopierLink
from server.shell.parties import Parties
from server.shell.reports import Reporter
from server.shell.supervisor import Supervisor, device_name

MODULE = "server.copier.gpu"

_JOIN_LIMIT_S = 1.0
"""For a thread that has nothing left to do but to end."""


@dataclass
class _Device:
    """One device that is served.

    Attributes:
        name: of the device.
        supervisor: keeps its copier running.
        reporter: which the supervisor's thread uses.
        is_retired: it was told to end.
    """

    name: str
    supervisor: Supervisor
    reporter: Reporter
    is_retired: bool = False


class DeviceCopiers:
    """Supervisors by copier.

    Args:
        links: commands to each copier; those of devices are added and removed here.
        make_reporter: a way to the loop for one more thread, by name.
        parties: writes down who may touch the arena; None to leave that out.
        module: what to run.
    """

    def __init__(
        self,
        links: dict[CopierId, CopierLink],
        make_reporter: Callable[[str], Reporter],
        parties: Parties | None,
        module: str = MODULE,
    ) -> None:
        self._links = links
        self._make_reporter = make_reporter
        self._parties = parties
        self._module = module
        self._devices: dict[CopierId, _Device] = {}
        self._free: list[Reporter] = []
        self._num_made = 0

    def start(self, copier: CopierId, device_uuid: bytes) -> None:
        """Has a copier kept running from now on.

        Args:
            copier: its number; ``ended`` was called for the last one of that number.
            device_uuid: 16 bytes.

        Raises:
            RuntimeError: no thread can be started.
        """
        if not self._free:
            self._free.append(self._make_reporter(f"device-{self._num_made}"))
            self._num_made += 1
        supervisor = Supervisor(copier, self._free[-1], self._module, self._parties, device_uuid)
        supervisor.start()
        self._devices[copier] = _Device(
            device_name(device_uuid), supervisor, reporter=self._free.pop()
        )
        self._links[copier] = CopierLink()

    def name(self, copier: CopierId) -> str:
        """What status and metrics call a copier.

        Args:
            copier: which; a device's that is gone is told by its number.
        """
        if copier == HOST_COPIER:
            return "host"
        device = self._devices.get(copier)
        return device.name if device is not None else str(copier)

    def retire(self, copier: CopierId) -> bool:
        """Has a copier ended, without waiting for it.

        Args:
            copier: which.

        Returns:
            Whether CopierEnded will say when it is gone; False when there is none.
        """
        device = self._devices.get(copier)
        if device is None:
            return False
        device.is_retired = True
        device.supervisor.retire()
        return True

    def is_retired(self, copier: CopierId) -> bool:
        """Whether a copier was told to end, so that its end is none to complain of."""
        device = self._devices.get(copier)
        return device is not None and device.is_retired

    def ended(self, copier: CopierId) -> None:
        """CopierEnded came: what was kept for that copier is given back."""
        device = self._devices.pop(copier, None)
        if device is None:
            return
        if device.supervisor.join(_JOIN_LIMIT_S):
            self._free.append(device.reporter)  # else its thread may still use it
        self._links.pop(copier).detach()

    def close(self, limit_s: float) -> bool:
        """Ends all copiers, at the end of the server.

        Args:
            limit_s: longest wait for all together, seconds.

        Returns:
            Whether all ended.
        """
        end_s = time.monotonic() + limit_s
        supervisors = [device.supervisor for device in self._devices.values()]
        for supervisor in supervisors:
            supervisor.abandon()
        stopped = [one.stop(max(0.0, end_s - time.monotonic())) for one in supervisors]
        return all(stopped)

    def close_reporters(self) -> None:
        """Closes what the threads reported with; all have ended."""
        for reporter in [*self._free, *(device.reporter for device in self._devices.values())]:
            reporter.close()
        self._free.clear()
        self._devices.clear()

    def figures(self) -> dict[str, int]:
        """For STATS: each device's copier, by the device's name; 0 while it does not run.

        The node is told of those that were placed on one.
        """
        values: dict[str, int] = {}
        for copier, device in self._devices.items():
            link = self._links[copier]
            values[f"copier_pid_{device.name}"] = link.pid
            values[f"copier_device_bytes_{device.name}"] = link.device_bytes
            if link.numa_node >= 0:
                values[f"copier_numa_node_{device.name}"] = link.numa_node
        return values

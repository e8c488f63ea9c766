"""What scheduler and worker of one engine share in a process.

The worker brings it up (link, identity, saver) when the pool is registered; until then, and
whenever that fails for good, the scheduler answers that nothing is cached. Must not know: the
host's hooks. Built by whichever of the two is constructed first.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from adapter.config import Settings, read_settings
from adapter.device import capture_device
from adapter.identity import Geometry
from adapter.journal import Journal
from adapter.link import Link, LinkConfig
from adapter.rendezvous import MEETING_POINT, Party, Role
from adapter.saver import Saver
from protocol import __version__
from protocol.ids import ID_BYTES, InstanceId

LOGGER: Final = logging.getLogger("kvkeep")
_CLOSE_S: Final = 2.0


@dataclass(frozen=True)
class Running:
    """A registered engine.

    Attributes:
        link: to the server.
        geometry: of the pool.
        saver: of this rank.
    """

    link: Link
    geometry: Geometry
    saver: Saver


class Engine(Party):
    """One engine's shared part.

    Attributes:
        settings: as read when it was founded.
        instance: names this engine to the server.
        journal: counts and logs what goes wrong.
    """

    def __init__(self, llm_args: object, settings: Settings) -> None:
        """Starts nothing.

        Args:
            llm_args: the engine's arguments.
            settings: of the adapter.
        """
        super().__init__(llm_args)
        self.settings = settings
        self.instance = InstanceId(os.urandom(ID_BYTES))
        self.journal = Journal(LOGGER)
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._uncached_because = ""
        self._finalizer: Callable[[], Any] | None = None
        self._closers: list[Callable[[], None]] = []

    @property
    def running(self) -> Running | None:
        """The registered engine, or None before registration and when it runs uncached."""
        return self._running

    @property
    def uncached_because(self) -> str:
        """Why this engine runs uncached for good; empty while it does not."""
        return self._uncached_because

    def bring_up(self, geometry: Geometry, register: Callable[[Link], None]) -> Running:
        """Starts link and saver.

        Args:
            geometry: of the pool.
            register: tells the link what to register.

        Returns:
            The registered engine.
        """
        link = Link(
            LinkConfig(
                url=self.settings.server.url,
                instance=self.instance,
                client=f"kvkeep adapter {__version__} pid {os.getpid()}",
                call_budget_s=self.settings.query_budget_s,
            )
        )
        register(link)
        percent = self.settings.held_percent
        saver = Saver(link, geometry, percent, self.journal, capture_device())
        link.start()
        saver.start()
        with self._lock:
            self._running = Running(link, geometry, saver)
            self._finalizer = weakref.finalize(self, _close, link, saver, self._closers)
        return self._running

    def at_close(self, closer: Callable[[], None]) -> None:
        """Has something closed with the engine, after its link.

        Args:
            closer: must not refer to the engine.
        """
        self._closers.append(closer)

    def run_uncached(self, reason: str) -> None:
        """Ends caching for this engine, with one line in the log.

        Args:
            reason: what is wrong and what to change.
        """
        with self._lock:
            if self._uncached_because:
                return
            self._uncached_because = reason
            running, self._running = self._running, None
        LOGGER.warning("kvkeep: this engine runs uncached: %s", reason)
        if running is not None:
            running.saver.abandon()

    def close(self) -> bool:
        """Unregisters and stops the threads, in bounded time. Idempotent.

        Returns:
            Whether the server acknowledged that nothing of it touches the pool any more.
        """
        with self._lock:
            self._running = None
            finalizer = self._finalizer
        result = finalizer() if finalizer is not None else True
        return result is None or bool(result)


def engine_for(llm_args: Any, role: Role, member: object) -> Engine:
    """The engine that a scheduler or worker belongs to.

    Args:
        llm_args: the object both are constructed with.
        role: of the caller.
        member: the caller.

    Returns:
        The shared part; the caller must keep it.

    Raises:
        ConfigError: a setting is wrong.
    """
    settings = read_settings(llm_args, os.environ)

    def found() -> Engine:
        LOGGER.info("kvkeep: server %s (from %s)", settings.server.url, settings.server.source)
        return Engine(llm_args, settings)

    return MEETING_POINT.meet(llm_args, role, member, Engine, found)


def _close(link: Link, saver: Saver, closers: list[Callable[[], None]]) -> bool:
    saver.stop(_CLOSE_S)
    is_acknowledged = link.close(_CLOSE_S)
    for closer in closers:
        closer()
    return is_acknowledged

"""The clients' commands, the same on every rank and in the same order.

Host contract §5, step 1: the leader fetches, every rank gets what was fetched. Each rank makes
its own state of a request; the leader's has the client's handle.

Must not know: what a command does. Executor thread; ``inbox`` takes from any.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from adapter.conformance.host.comm import IDLE_BEAT_S, Communicator
from adapter.conformance.host.inbox import Command, Inbox
from adapter.conformance.host.requests import HostRequest, RequestParams

Adopt = Callable[[int, RequestParams], HostRequest]
"""Makes a rank's own state of a request that another rank took in."""

Wire = tuple[int, RequestParams] | int | str
"""A request, the id of one to cancel, ``forget``, ``stop``."""


class CommandFeed:
    """Takes commands in on the leader and hands them to every rank.

    Args:
        inbox: Where clients put them; a follower's stays empty.
        comm: Between the ranks.
        adopt: Makes a follower's state of a request.
    """

    def __init__(self, inbox: Inbox, comm: Communicator, adopt: Adopt) -> None:
        self._inbox = inbox
        self._comm = comm
        self._adopt = adopt

    def take(self, timeout_s: float | None) -> list[Command]:
        """Every command since the last call.

        Args:
            timeout_s: Longest wait for the first in seconds; None waits for ever, but with
                several ranks no longer than ``IDLE_BEAT_S`` before all of them meet.

        Returns:
            Commands in order; empty if none came in time.
        """
        if self._comm.size == 1:
            return self._inbox.take(timeout_s)
        if self._comm.rank:
            return [self._from_wire(item) for item in self._comm.broadcast(None)]
        commands = self._inbox.take(IDLE_BEAT_S if timeout_s is None else timeout_s)
        self._comm.broadcast([_to_wire(command) for command in commands])
        return commands

    def _from_wire(self, item: Wire) -> Command:
        if isinstance(item, tuple):
            return self._adopt(*item)
        if isinstance(item, int):
            return item
        return Future() if item == "forget" else None


def _to_wire(command: Command) -> Wire:
    if isinstance(command, HostRequest):
        return command.request_id, command.params
    if isinstance(command, int):
        return command
    return "stop" if command is None else "forget"

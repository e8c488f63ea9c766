"""What a link has once for all of its stays with servers, and how a stay ends.

Must not know: anything that happens during a stay. Read by the keeper's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import zmq

from adapter.breaker import Breaker
from adapter.extents import ExtentTable
from adapter.formers import Formers
from adapter.journal import Journal
from adapter.mapper import Mapper
from adapter.membership import Membership
from adapter.openoffers import Watch
from adapter.outbox import Outbox
from protocol.errors import UnreachableError
from protocol.ids import Epoch, InstanceId, SessionId

LiveRequests = Callable[[], Iterable[int]]
"""Gives the request keys that live, called on the keeper's thread."""


class VisitEndedError(UnreachableError):
    """The stay is over; the code says why."""


@dataclass(frozen=True)
class Household:
    """Shared parts of one link.

    Attributes:
        context: ZMQ context.
        membership: written by the keeper's thread, read by all.
        breaker: tripped and closed by what the server answers.
        journal: counters.
        outbox: what must be said.
        table: mapped extents.
        mapper: maps them.
        formers: servers that were met before.
        instance: the engine.
        client: name for the server's log.
        connect_timeout_s: for each step of joining.
    """

    context: zmq.Context[Any]
    membership: Membership
    breaker: Breaker
    journal: Journal
    outbox: Outbox
    table: ExtentTable
    mapper: Mapper
    formers: Formers
    instance: InstanceId
    client: str
    connect_timeout_s: float


@dataclass(frozen=True)
class Former:
    """The registration before the present stay.

    Attributes:
        epoch: of its server.
        session: its number.
        watch: for the end of the offers that were made under it.
    """

    epoch: Epoch
    session: SessionId
    watch: Watch

"""Units of what a link's parts share."""

from __future__ import annotations

import logging

import zmq

from adapter.breaker import Breaker
from adapter.extents import ExtentTable
from adapter.household import Household, VisitEndedError
from adapter.journal import Journal
from adapter.mapper import Mapper
from adapter.membership import Membership
from adapter.outbox import Outbox
from protocol.errors import ErrorCode, UnreachableError
from protocol.ids import InstanceId


def household(context: zmq.Context[zmq.Socket[bytes]], retire_s: float = 10.0) -> Household:
    """A household whose mapper is not started."""
    journal = Journal(logging.getLogger("kvkeep.test"))
    table = ExtentTable(lambda: None)
    return Household(
        context=context,
        membership=Membership(),
        breaker=Breaker(lambda: None),
        journal=journal,
        outbox=Outbox(lambda: None),
        table=table,
        mapper=Mapper(table, journal, lambda: None),
        instance=InstanceId(b"i" * 16),
        client="test",
        connect_timeout_s=2.0,
        retire_s=retire_s,
    )


def test_retire_time_is_told_in_nanoseconds() -> None:
    with zmq.Context() as context:
        assert household(context, 1.5).retire_ns == 1_500_000_000


def test_the_end_of_a_stay_is_told_as_unreachable() -> None:
    error = VisitEndedError(ErrorCode.UNAVAILABLE, "gone")
    assert isinstance(error, UnreachableError)
    assert str(error) == "UNAVAILABLE: gone"

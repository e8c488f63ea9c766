"""Units of what a link's parts share."""

from __future__ import annotations

import logging

import zmq

from adapter.breaker import Breaker
from adapter.extents import ExtentTable
from adapter.formers import Formers
from adapter.household import Household, VisitEndedError
from adapter.journal import Journal
from adapter.mapper import Mapper
from adapter.membership import Membership
from adapter.openoffers import OpenOffers
from adapter.outbox import Outbox
from protocol.errors import ErrorCode, UnreachableError
from protocol.ids import InstanceId


def household(context: zmq.Context[zmq.Socket[bytes]], quiet_s: float = 10.0) -> Household:
    """A household whose mapper is not started."""
    journal = Journal(logging.getLogger("kvkeep.test"))
    table = ExtentTable(lambda: None)
    mapper = Mapper(table, journal, lambda: None)
    return Household(
        context=context,
        membership=Membership(),
        breaker=Breaker(lambda: None),
        journal=journal,
        outbox=Outbox(lambda: None),
        table=table,
        mapper=mapper,
        formers=Formers(table, mapper, OpenOffers(), quiet_s),
        instance=InstanceId(b"i" * 16),
        client="test",
        connect_timeout_s=2.0,
    )


def test_the_end_of_a_stay_is_told_as_unreachable() -> None:
    error = VisitEndedError(ErrorCode.UNAVAILABLE, "gone")
    assert isinstance(error, UnreachableError)
    assert str(error) == "UNAVAILABLE: gone"

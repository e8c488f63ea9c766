"""Every message, by its own type: round trips, ranges at their edge, numbers that never change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import frames, messages
from protocol.messages import REPLY_TYPES, REQUEST_TYPES, Op, StopReason, as_plain
from tests.protocol import strategies
from tests.protocol.strategies import refused, valid_plain

OPERATIONS = {
    "HELLO": 1,
    "REGISTER_KV_CACHE": 2,
    "MAPPED": 3,
    "UNREGISTER": 4,
    "HEARTBEAT": 5,
    "PING": 6,
    "LOOKUP": 10,
    "QUERY_PREFETCH_STATUS": 11,
    "RETRIEVE": 12,
    "RELEASE": 13,
    "END_SESSION": 14,
    "STORE": 20,
    "COMMIT": 21,
    "CANCEL": 22,
    "STATS": 30,
    "CLEAR": 31,
    "PIN": 32,
    "UNPIN": 33,
    "INSPECT": 34,
    "DELETE": 35,
    "WARM": 36,
    "WARM_STATUS": 37,
    "WARM_CANCEL": 38,
    "STATUS": 39,
    "QUOTAS": 40,
    "EVENTS": 41,
    "SNAPSHOT": 42,
    "DELETE_SALT": 43,
}
STOPS = {
    "NONE": 0,
    "BUSY": 1,
    "MISSING_PARENT": 2,
    "NO_ROOM": 3,
    "CLEARED": 4,
    "COPY_FAILED": 5,
}
EVERY = (*strategies.BODIES, *strategies.PARTS)
FIELDS = [(kind, one.name) for kind in EVERY for one in strategies.fields(kind)]
IDS = [f"{kind.__name__}.{name}" for kind, name in FIELDS]


def test_numbers_never_change() -> None:
    assert {op.name: int(op) for op in Op} == OPERATIONS
    assert {stop.name: int(stop) for stop in StopReason} == STOPS


def test_every_operation_has_its_request_and_reply() -> None:
    assert set(REQUEST_TYPES) == set(REPLY_TYPES) == set(map(int, Op))
    assert all(kind.op == op for op, kind in REQUEST_TYPES.items())


@pytest.mark.parametrize("op", Op)
@given(data=st.data())
@settings(max_examples=25)
def test_requests_and_replies_round_trip(op: Op, data: st.DataObject) -> None:
    request = data.draw(strategies.values(REQUEST_TYPES[op]))
    frame = frames.pack_request(request, 7, b"e" * 16, b"a" * 16, 9)
    assert frames.request_body(frames.unpack_request(frame)) == request
    reply = data.draw(strategies.values(REPLY_TYPES[op]))
    assert frames.unpack_reply(frames.pack_reply(op, 7, reply)).body == reply


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=IDS)
def test_values_just_outside_are_refused(kind: type[Any], name: str) -> None:
    plain = valid_plain(kind)
    assert not refused(plain, kind)
    field = {one.name: one for one in strategies.fields(kind)}[name]
    outside = strategies.just_outside(field.type)
    if name == "memory":
        outside = [1, "x", []]  # nil is a value there
    elif name == "numa_node":
        outside = [-1, 1024, "x", 0.0]  # and there
    assert outside
    assert [value for value in outside if not refused({**plain, name: value}, kind)] == []


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=IDS)
def test_only_fields_with_a_default_may_be_missing(kind: type[Any], name: str) -> None:
    plain = valid_plain(kind)
    plain.pop(name, None)  # one that is left out by default is not there
    field = {one.name: one for one in strategies.fields(kind)}[name]
    assert refused(plain, kind) is field.required


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_unknown_fields_are_refused(kind: type[Any]) -> None:
    """B46: an extra field is a typed error, not a field that is silently ignored."""
    assert refused({**valid_plain(kind), "extra": 1}, kind)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_a_body_is_a_map(kind: type[Any]) -> None:
    for other in ([], list(valid_plain(kind).values()), 1, "x", b"x", None):
        assert refused(other, kind)


def test_as_plain_keeps_bytes() -> None:
    reply = messages.LookupReply(lease=b"l" * 16, ready=3)
    assert as_plain(reply) == {"lease": b"l" * 16, "ready": 3, "pending": 0, "final": True}

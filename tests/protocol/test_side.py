"""Packets of the side socket: round trips, ranges, the two directions kept apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec, limits, side
from protocol.errors import ErrorCode, RequestError
from tests.protocol import strategies
from tests.protocol.strategies import refused, valid_plain

FROM_CLIENT = (side.SideHello, side.PoolOffer, side.Drained)
FROM_SERVER = (
    side.Welcome,
    side.PoolAccepted,
    side.ExtentGiven,
    side.ExtentTaken,
    side.SideError,
)
TYPES = {
    "SideHello": "hello",
    "Welcome": "welcome",
    "PoolOffer": "pool",
    "PoolAccepted": "pool_accepted",
    "Drained": "drained",
    "ExtentGiven": "extent",
    "ExtentTaken": "extent_taken",
    "SideError": "error",
}
FIELDS = [(kind, one.name) for kind in strategies.PACKETS for one in strategies.fields(kind)]


@pytest.mark.parametrize("kind", FROM_CLIENT)
@given(data=st.data())
def test_packets_of_clients_round_trip(kind: type[Any], data: st.DataObject) -> None:
    packet = data.draw(strategies.values(kind))
    assert side.unpack_from_client(side.pack(packet)) == packet
    assert codec.plain_from_bytes(side.pack(packet))["type"] == TYPES[kind.__name__]
    with pytest.raises(RequestError):
        side.unpack_from_server(side.pack(packet))


@pytest.mark.parametrize("kind", FROM_SERVER)
@given(data=st.data())
def test_packets_of_the_server_round_trip(kind: type[Any], data: st.DataObject) -> None:
    packet = data.draw(strategies.values(kind))
    assert side.unpack_from_server(side.pack(packet)) == packet
    assert codec.plain_from_bytes(side.pack(packet))["type"] == TYPES[kind.__name__]
    with pytest.raises(RequestError):
        side.unpack_from_client(side.pack(packet))


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{k.__name__}.{n}" for k, n in FIELDS])
def test_values_just_outside_are_refused(kind: type[Any], name: str) -> None:
    plain = valid_plain(kind)
    assert not refused(plain, kind)
    field = {one.name: one for one in strategies.fields(kind)}[name]
    outside = strategies.just_outside(field.type)
    assert [value for value in outside if not refused({**plain, name: value}, kind)] == []


@pytest.mark.parametrize("kind", strategies.PACKETS)
def test_unknown_fields_and_types_are_refused(kind: type[Any]) -> None:
    plain = valid_plain(kind)
    read = side.unpack_from_client if kind in FROM_CLIENT else side.unpack_from_server
    for bad in ({**plain, "extra": 1}, {**plain, "type": "other"}, {**plain, "type": 1}):
        with pytest.raises(RequestError) as caught:
            read(codec.bytes_from_struct(bad))
        assert caught.value.code is ErrorCode.MALFORMED
    del plain["type"]
    with pytest.raises(RequestError):
        read(codec.bytes_from_struct(plain))


@given(st.binary(max_size=100))
def test_random_bytes_are_one_typed_error(data: bytes) -> None:
    for read in (side.unpack_from_client, side.unpack_from_server):
        with pytest.raises(RequestError) as caught:
            read(data)
        assert caught.value.code is ErrorCode.MALFORMED


def test_packets_are_bounded() -> None:
    long = bytes(limits.MAX_SIDE_BYTES + 1)
    with pytest.raises(RequestError) as caught:
        side.unpack_from_client(long)
    assert caught.value.code is ErrorCode.TOO_LARGE
    with pytest.raises(RequestError) as caught:
        side.unpack_from_client(long[:-1])
    assert caught.value.code is ErrorCode.MALFORMED

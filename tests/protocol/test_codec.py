"""Whatever the bytes, a value or one typed error, in bounded time and memory (B47)."""

from __future__ import annotations

import math
import pickle
import struct
import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import codec, frames, limits, messages
from protocol.errors import ErrorCode, KvkeepError, ReplyMalformedError, RequestError
from tests.protocol import strategies

PEAK_BYTES = 48 << 20
"""Most that decoding one hostile frame of 1 MiB may allocate at its peak."""


def array16(count: int) -> bytes:
    return b"\xdc" + struct.pack(">H", count)


def full(item: bytes) -> bytes:
    """As many items as a frame holds, in arrays as long as allowed."""
    size = limits.MAX_REGIONS
    part = array16(size) + item * size
    count = (limits.MAX_FRAME_BYTES - 3) // len(part)
    return array16(count) + part * count


HOSTILE = {
    "open arrays": array16(limits.MAX_REGIONS) * (limits.MAX_FRAME_BYTES // 3),
    "open maps": (b"\xde\x04\x00\xa0") * (limits.MAX_FRAME_BYTES // 4),
    "nested deeply": b"\x91" * (limits.MAX_FRAME_BYTES - 1) + b"\xc0",
    "nested maps": b"\x81\xa0" * 500_000 + b"\xc0",
    "empty arrays": full(b"\x90"),
    "empty maps": full(b"\x80"),
    "small maps": full(b"\x81\xa0\x01"),
    "floats": full(b"\xcb" + b"\x3f" * 8),
    "short texts": full(b"\xa2ab"),
    "long integers": full(b"\xcf" + b"\xff" * 8),
    "announced array": b"\xdd\xff\xff\xff\xff",
    "announced map": b"\xdf\xff\xff\xff\xff",
    "announced bytes": b"\xc6\xff\xff\xff\xff",
    "announced text": b"\xdb\xff\xff\xff\xff",
    "announced extension": b"\xc9\xff\xff\xff\xff\x01",
}

REFUSED = {
    "nothing": b"",
    "two values": b"\xc0\xc0",
    "cut off": b"\x92\x01",
    "reserved byte": b"\xc1",
    "pickle": pickle.dumps({"op": 1}),
    "extension": msgpack.packb(msgpack.ExtType(5, b"x")),
    "empty extension": b"\xc7\x00\x05",
    "timestamp": msgpack.packb(msgpack.Timestamp(1, 2)),
    "empty timestamp": b"\xc7\x00\xff",
    "key twice": b"\x82\xa1a\x01\xa1a\x02",
    "key twice, deep": b"\x91\x81\xa1b\x82\xa1a\x01\xa1a\x01",
    "array as key": b"\x81\x90\x01",
    "number as key": b"\x81\x01\x01",
    "nil as key": b"\x81\xc0\x01",
    "no UTF-8": b"\xa1\xff",
    "surrogate": b"\xa3\xed\xa0\x80",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_value_of_this_wire(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        codec.plain_from_bytes(REFUSED[name])
    assert caught.value.code is ErrorCode.MALFORMED
    assert len(caught.value.message) <= limits.MAX_TEXT_CHARS


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_frames_cost_little(name: str) -> None:
    frame = HOSTILE[name]
    assert len(frame) <= limits.MAX_FRAME_BYTES
    started = time.process_time()
    tracemalloc.start()
    try:
        code = refused(frame)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert code in (ErrorCode.MALFORMED, None)
    with pytest.raises(RequestError):
        frames.unpack_request(frame)
    assert peak_bytes < PEAK_BYTES
    assert time.process_time() - started < 5.0  # 0.3 s on an idle machine


def refused(data: bytes, max_bytes: int = limits.MAX_FRAME_BYTES) -> ErrorCode | None:
    try:
        codec.plain_from_bytes(data, max_bytes)
    except RequestError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (msgpack.packb("x" * 2048), msgpack.packb("x" * 2049)),
        (array16(2048) + b"\xc0" * 2048, array16(2049) + b"\xc0" * 2049),
        (array16(2) + (array16(2046) + b"\x90" * 2046) + array16(2047) + b"\x90" * 2047, None),
        (
            msgpack.packb({str(n): 0 for n in range(1024)}),
            msgpack.packb({str(n): 0 for n in range(1025)}),
        ),
        (
            array16(2) + (array16(2047) + b"\x90" * 2047) + array16(2046) + b"\x80" * 2046,
            array16(2) + (array16(2047) + b"\x90" * 2047) + array16(2047) + b"\x80" * 2047,
        ),
    ],
    ids=["text", "array", "containers at the edge", "map", "containers"],
)
def test_limits_hold_at_their_edge(least: bytes, most: bytes | None) -> None:
    assert refused(least) is None
    assert most is None or refused(most) is ErrorCode.MALFORMED


def test_the_longest_input_is_the_callers_choice() -> None:
    data = msgpack.packb(bytes(94))
    assert len(data) == 96
    assert refused(data, 96) is None
    assert refused(data, 95) is ErrorCode.TOO_LARGE


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.binary(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain)
def test_plain_values_survive(value: Any) -> None:
    again = codec.plain_from_bytes(codec.bytes_from_struct(value))
    assert again == value or repr(again) == repr(value) or math.isnan(again)


@given(plain, st.sampled_from(strategies.BODIES + strategies.PARTS + strategies.PACKETS))
def test_any_plain_value_becomes_a_struct_or_one_error(value: Any, kind: type[Any]) -> None:
    try:
        outcome = codec.struct_from_plain(value, kind)
    except RequestError as error:
        outcome = error.code
    assert outcome is ErrorCode.MALFORMED or isinstance(outcome, kind)


def all_the_way(data: bytes) -> None:
    """Everything a server does with a frame before it acts, and a client with a reply."""
    refusal: KvkeepError | None = None
    try:
        frames.request_body(frames.unpack_request(data))
    except RequestError as error:
        refusal = error
    if refusal is not None:
        reply = frames.unpack_reply(frames.pack_error(0, 0, refusal))
        assert reply.error is not None
        assert reply.error.code is refusal.code
    try:
        frames.unpack_reply(data)
    except ReplyMalformedError:
        pass


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes(data: bytes) -> None:
    all_the_way(data)


valid_requests = st.one_of([strategies.values(kind) for kind in strategies.REQUESTS])


@given(valid_requests, st.data())
@settings(max_examples=200)
def test_mutated_frames(body: messages.Request, data: st.DataObject) -> None:
    frame = bytearray(frames.pack_request(body, 1, b"e" * 16, b"a" * 16, 5))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        act = data.draw(st.sampled_from(("set", "drop", "insert", "cut")))
        if act == "set":
            frame[at] = data.draw(st.integers(0, 255))
        elif act == "drop" and len(frame) > 1:
            del frame[at]
        elif act == "insert":
            frame[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif at:
            del frame[at:]
    all_the_way(bytes(frame))


def test_nesting_inside_a_body_is_no_way_around() -> None:
    deep = b"\x91" * 900 + b"\xc0"
    frame = b"\x96\x06\x01\xc4\x00\xc4\x00\x00\x81\xa1x" + deep
    with pytest.raises(RequestError):
        frames.request_body(frames.unpack_request(frame))


@pytest.mark.parametrize("value", ["\ud800", {"x": 1 << 64}, {"\udfff": 1}])
def test_what_cannot_be_sent_says_so(value: Any) -> None:
    with pytest.raises(RequestError, match="cannot be sent") as caught:
        codec.bytes_from_struct(value)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("session", ["1", b"1", 1.0, True, None, [1]])
def test_nothing_is_coerced(session: Any) -> None:
    with pytest.raises(RequestError, match=r"\$.session"):
        codec.struct_from_plain({"session": session}, messages.Unregister)


def test_errors_name_the_field_and_what_is_valid() -> None:
    with pytest.raises(RequestError, match=r"Expected `int` >= 1 - at `\$.session`"):
        codec.struct_from_plain({"session": 0}, messages.Unregister)
    long = "x" * 2000
    with pytest.raises(RequestError, match="unknown field") as caught:
        codec.struct_from_plain({"session": 1, long: 1}, messages.Unregister)
    assert len(caught.value.message) <= limits.MAX_TEXT_CHARS

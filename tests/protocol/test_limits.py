"""The limits fit together: what one allows, another does not forbid."""

from __future__ import annotations

import pytest

from protocol import codec, frames, limits, messages, side
from protocol.errors import ErrorCode, RequestError

ID = bytes(16)


def sent(request: messages.Request) -> messages.Request:
    frame = frames.pack_request(request, limits.MAX_U32, ID, ID, limits.MAX_U63)
    assert len(frame) <= limits.MAX_FRAME_BYTES
    return frames.request_body(frames.unpack_request(frame))


def test_the_longest_store_fits_a_frame() -> None:
    count = limits.MAX_BLOCKS_PER_MESSAGE
    store = messages.Store(
        session=limits.MAX_U63,
        store=limits.MAX_U63,
        request=limits.MAX_U63,
        shard=limits.MAX_SHARDS - 1,
        start=limits.MAX_U32,
        parent=ID,
        keys=ID * count,
        pages=bytes(4) * count,
    )
    assert sent(store) == store


def test_the_longest_retrieve_reply_fits_a_frame() -> None:
    slots = bytes(16 * limits.MAX_SLOTS_PER_REPLY)
    reply = messages.RetrieveReply(slots=slots, num_shards=limits.MAX_SHARDS)
    frame = frames.pack_reply(int(messages.Op.RETRIEVE), limits.MAX_U32, reply)
    assert len(frame) <= limits.MAX_FRAME_BYTES
    assert frames.unpack_reply(frame).body == reply


def test_the_longest_heartbeat_and_mapped_fit_a_frame() -> None:
    beat = messages.Heartbeat(session=1, requests=bytes(8 * limits.MAX_LIVE_REQUESTS))
    extents = bytes(4 * limits.MAX_EXTENTS_PER_MESSAGE)
    mapped = messages.Mapped(session=1, mapped=extents, unmapped=extents)
    assert sent(beat) == beat
    assert sent(mapped) == mapped


def test_one_region_per_layer_in_each_group_fits_a_frame() -> None:
    groups = [
        {"layers": list(range(g * 16, g * 16 + 16)), "page_bytes": limits.MAX_PAGE_BYTES}
        for g in range(limits.MAX_GROUPS)
    ]
    region = {
        "offset_bytes": limits.MAX_POOL_BYTES,
        "size_bytes": limits.MAX_PAGE_BYTES,
        "stride_bytes": limits.MAX_POOL_BYTES,
    }
    pools = [
        {"shard": g, "num_pages": limits.MAX_PAGES, "regions": [region] * 16}
        for g in range(limits.MAX_GROUPS)
    ]
    namespace = {
        **dict.fromkeys(("model_id", "host_version", "kv_dtype"), "x"),
        **dict.fromkeys(("attention_backend", "kv_layout"), "x"),
        **dict.fromkeys(("config_digest", "weights_digest"), bytes(64)),
        "tokens_per_block": limits.MAX_TOKENS_PER_BLOCK,
        "groups": groups,
    }
    plain = {"namespace": namespace, "rank": 0, "memory": None, "pools": pools}
    request = codec.struct_from_plain(plain, messages.RegisterKvCache)
    assert sent(request) == request


def test_every_side_packet_without_long_texts_fits_its_bound() -> None:
    given = side.ExtentGiven(
        session=limits.MAX_U63,
        extent=limits.MAX_U32,
        shard=limits.MAX_SHARDS - 1,
        num_slots=limits.MAX_U32,
        slot_bytes=limits.MAX_U63,
        payload_bytes=limits.MAX_U63,
        data_offset_bytes=limits.MAX_U63,
        file_bytes=limits.MAX_U63,
    )
    longest = "\U0001f600" * limits.MAX_TEXT_CHARS
    error = side.SideError(code=limits.MAX_U32, message=longest, pool=ID)
    for packet in (given, error):
        assert len(side.pack(packet)) <= limits.MAX_SIDE_BYTES
        assert side.unpack_from_server(side.pack(packet)) == packet


def test_a_frame_one_byte_too_long_is_refused_before_it_is_read() -> None:
    body = b"\xc5\xff\xff" + bytes(65535)
    exact = body + b"\xc0" * (limits.MAX_FRAME_BYTES - len(body))
    with pytest.raises(RequestError) as at_edge:
        codec.plain_from_bytes(exact)
    assert at_edge.value.code is ErrorCode.MALFORMED  # read, and found to hold several values
    with pytest.raises(RequestError) as over:
        codec.plain_from_bytes(exact + b"\xc0")
    assert over.value.code is ErrorCode.TOO_LARGE
    assert over.value.detail["max_bytes"] == limits.MAX_FRAME_BYTES

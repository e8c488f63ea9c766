"""Events on the wire: bounds that agree with the frame's, and kinds that the page names."""

from __future__ import annotations

import pytest

from protocol import codec, frames, limits
from protocol.errors import RequestError
from protocol.events import EVENT_KINDS, MAX_EVENT_CHUNKS, MAX_SNAPSHOT_CHUNKS, KvEvent
from protocol.ids import ID_BYTES
from protocol.messages import Op, SnapshotReply
from tests.repository import tree


def test_the_page_names_each_kind() -> None:
    text = tree.text("docs/protocol.md")
    rows = text[text.index("### KvEvent") :]
    assert [
        kind for kind in EVENT_KINDS if f"`{kind}`" not in rows[: rows.index("## Errors")]
    ] == []


def test_an_event_has_so_many_chunks_at_most() -> None:
    most = b"k" * (MAX_EVENT_CHUNKS * ID_BYTES)
    plain = {"kind": "stored", "fingerprint": b"n" * 16, "keys": most}
    assert codec.struct_from_plain(plain, KvEvent).keys == most
    with pytest.raises(RequestError):
        codec.struct_from_plain({**plain, "keys": most + b"k"}, KvEvent)
    with pytest.raises(RequestError):
        codec.struct_from_plain({**plain, "tokens": [1]}, KvEvent)


def test_the_fullest_page_fits_a_frame_many_times() -> None:
    blob = b"\xff" * (MAX_SNAPSHOT_CHUNKS * ID_BYTES)
    body = SnapshotReply(
        fingerprint=b"n" * 16,
        keys=blob,
        parents=blob,
        next_fingerprint=b"n" * 16,
        next_position=limits.MAX_U32,
    )
    frame = frames.pack_reply(Op.SNAPSHOT, 1, body)
    assert frames.unpack_reply(frame).body == body
    assert len(frame) < limits.MAX_FRAME_BYTES // 4

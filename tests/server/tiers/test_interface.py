"""What engines are handed: the payload is the leading bytes of the room, and writes go through."""

from server.tiers.interface import Name, Part, TierError


def test_the_payload_is_the_rooms_leading_bytes() -> None:
    room = bytearray(4096)
    part = Part(Name(b"f" * 16, b"k" * 16, 2), memoryview(bytearray(128)), memoryview(room), 10, 0)
    part.payload[:] = b"0123456789"
    assert room[:11] == b"0123456789\0"
    assert part.heat == 0
    assert (part.name.fingerprint, part.name.key, part.name.shard) == (b"f" * 16, b"k" * 16, 2)


def test_a_tier_error_is_one_line_for_people() -> None:
    assert str(TierError("no such folder")) == "no such folder"

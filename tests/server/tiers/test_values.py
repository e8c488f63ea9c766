"""Headers of values: a value is believed only when it is the one that was asked for, whole."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.interface import HEADER_BYTES, Name, Part

PAYLOAD_BYTES = 1000
ROOM_BYTES = 4096
NAME = Name(bytes(range(16)), bytes(range(16, 32)), 3)
PARENT = bytes(range(32, 48))


def part(name: Name = NAME, payload_bytes: int = PAYLOAD_BYTES) -> Part:
    header, room = bytearray(HEADER_BYTES), bytearray(ROOM_BYTES)
    room[:payload_bytes] = bytes(i % 251 for i in range(payload_bytes))
    return Part(name, memoryview(header), memoryview(room), payload_bytes, 0)


def sealed() -> Part:
    one = part()
    values.seal(one, PARENT)
    return one


def test_a_sealed_value_is_ok_and_bytes_behind_the_payload_do_not_matter() -> None:
    one = sealed()
    one.room[PAYLOAD_BYTES] ^= 255
    assert values.check(one, PARENT) == Status.OK


@given(st.integers(0, HEADER_BYTES + PAYLOAD_BYTES - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(at: int, change: int) -> None:
    one = sealed()
    if at < HEADER_BYTES:
        one.header[at] ^= change
    else:
        one.room[at - HEADER_BYTES] ^= change
    assert values.check(one, PARENT) == Status.CORRUPT


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(sealed(), name=NAME._replace(fingerprint=bytes(16))),
        dataclasses.replace(sealed(), name=NAME._replace(key=bytes(16))),
        dataclasses.replace(sealed(), name=NAME._replace(shard=2)),
        dataclasses.replace(sealed(), payload_bytes=PAYLOAD_BYTES - 1),
        dataclasses.replace(sealed(), payload_bytes=PAYLOAD_BYTES + 1),
    ],
)
def test_a_sound_value_of_something_else_is_not_taken(other: Part) -> None:
    assert values.check(other, PARENT) == Status.CORRUPT


def test_a_value_whose_chain_is_another_is_not_taken() -> None:
    assert values.check(sealed(), bytes(16)) == Status.CORRUPT


def test_what_was_never_written_is_not_taken() -> None:
    assert values.check(part(), PARENT) == Status.CORRUPT


def test_a_value_of_another_version_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "VERSION", 3)
    later = sealed()
    monkeypatch.undo()
    assert values.check(later, PARENT) == Status.ABSENT


def test_an_empty_payload_is_a_value() -> None:
    empty = part(payload_bytes=0)
    values.seal(empty, PARENT)
    assert values.check(empty, PARENT) == Status.OK


def test_the_parent_is_told_of_a_sound_header_of_that_value_only() -> None:
    header = bytes(sealed().header)
    assert values.parent_of(header, NAME) == PARENT
    assert values.parent_of(header, NAME._replace(shard=4)) is None
    assert values.parent_of(header, NAME._replace(key=bytes(16))) is None
    assert values.parent_of(b"", NAME) is None
    assert values.parent_of(bytes(HEADER_BYTES), NAME) is None
    for at in range(HEADER_BYTES):
        torn = bytearray(header)
        torn[at] ^= 1
        assert values.parent_of(bytes(torn), NAME) is None


def test_a_value_that_is_encrypted_is_not_taken_for_one_that_is_not() -> None:
    one = sealed()
    values.write(one, PARENT, values.ENCRYPTED, values.digest(one.payload), b"")
    assert values.check(one, PARENT) == Status.LOCKED
    assert values.parent_of(bytes(one.header), NAME) == PARENT
    values.write(one, PARENT, 3, values.digest(one.payload), b"")
    assert values.parent_of(bytes(one.header), NAME) is None

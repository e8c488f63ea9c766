"""Packets of the porter: there and back, and nothing else is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.core.tiers.parts import MAX_KEYS, MAX_PARTS, PART_DTYPE
from server.porter import wire
from server.porter.wire import Answer, Command, Kind

NUMBERS = st.integers(0, 2**63 - 1)
SIMPLE = [
    *(Kind.CONFIGURE, Kind.MAP_EXTENT, Kind.UNMAP_EXTENT, Kind.CLEAR, Kind.HEALTH),
    *(Kind.KEEP, Kind.QUOTAS),
]


@given(st.sampled_from(SIMPLE), NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=200))
def test_plain_commands_go_there_and_back(
    kind: Kind, number: int, size: int, offset: int, text: bytes
) -> None:
    command = Command(kind, number, size, offset, bytes(range(16)), text=text)
    assert wire.unpack_command(wire.pack_command(command)) == command


@pytest.mark.parametrize("num_parts", [0, 1, MAX_PARTS])
@pytest.mark.parametrize("kind", [Kind.GET, Kind.PUT])
def test_parts_go_there_and_back(kind: Kind, num_parts: int) -> None:
    raw = np.random.default_rng(1).bytes(num_parts * PART_DTYPE.itemsize)
    parts = np.frombuffer(raw, dtype=PART_DTYPE)
    packet = wire.pack_command(Command(kind, 7, fingerprint=bytes(16), parts=parts))
    assert len(packet) <= wire.MAX_COMMAND_BYTES
    read = wire.unpack_command(packet)
    assert read.parts is not None
    assert (read.kind, read.number, read.parts.tobytes()) == (kind, 7, raw)


@pytest.mark.parametrize("num_keys", [0, 1, MAX_KEYS])
@pytest.mark.parametrize("kind", [Kind.PROBE, Kind.DROP, Kind.TOUCH, Kind.OF_SALT])
def test_keys_go_there_and_back(kind: Kind, num_keys: int) -> None:
    command = Command(kind, 7, keys=bytes(range(16)) * num_keys, shards=3, first=2)
    packet = wire.pack_command(command)
    assert len(packet) <= wire.MAX_COMMAND_BYTES
    assert wire.unpack_command(packet) == command


@given(
    st.sampled_from(list(Kind)),
    NUMBERS,
    st.none() | st.text(max_size=300),
    st.binary(max_size=MAX_PARTS),
)
def test_answers_go_there_and_back(
    kind: Kind, number: int, error: str | None, statuses: bytes
) -> None:
    packet = wire.pack_answer(Answer(kind, number, 5, error, statuses, number // 2, number // 3))
    answer = wire.unpack_answer(packet)
    assert len(packet) <= wire.MAX_ANSWER_BYTES
    count = 0 if kind is Kind.HEALTH else 5  # it has no room for one there
    assert (answer.kind, answer.number, answer.count) == (kind, number, count)
    if error is None:
        assert answer.statuses == statuses
        assert (answer.used_bytes, answer.capacity_bytes) == (number // 2, number // 3)
        assert answer.error is None
    else:
        assert answer.error is not None
        assert not error.isascii() or answer.error == error[: wire.MAX_TEXT_BYTES]


@given(st.binary(max_size=MAX_PARTS), st.text(max_size=wire.MAX_TEXT_BYTES // 4))
def test_a_warning_rides_behind_what_a_tier_counts(statuses: bytes, warning: str) -> None:
    answer = Answer(Kind.HEALTH, 7, statuses=statuses, used_bytes=5, warning=warning)
    assert wire.unpack_answer(wire.pack_answer(answer)) == answer


def test_a_long_warning_is_cut_and_one_of_a_wrong_length_is_read_as_far_as_it_goes() -> None:
    packet = wire.pack_answer(Answer(Kind.HEALTH, 7, statuses=b"counts", warning="w" * 1000))
    read = wire.unpack_answer(packet)
    assert (read.statuses, read.warning) == (b"counts", "w" * wire.MAX_TEXT_BYTES)
    cut = wire.unpack_answer(packet[: 32 + 10])
    assert (cut.statuses, cut.warning) == (b"", "countswwww")


@pytest.mark.parametrize(
    "packet", [b"", b"x", bytes(47), b"\x63" + bytes(47), b"\x05" + bytes(47) + b"x"]
)
def test_no_other_command_is_read(packet: bytes) -> None:
    with pytest.raises(ValueError):
        wire.unpack_command(packet)


@pytest.mark.parametrize("packet", [b"", bytes(31), b"\x63" + bytes(31)])
def test_no_other_answer_is_read(packet: bytes) -> None:
    with pytest.raises(ValueError):
        wire.unpack_answer(packet)

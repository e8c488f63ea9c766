"""Packets of the copier: there and back, and nothing else is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.copier import wire
from server.copier.wire import Answer, Command, Kind

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.sampled_from(list(Kind)), NUMBERS, NUMBERS, NUMBERS)
def test_commands_go_there_and_back(kind: Kind, number: int, size: int, offset: int) -> None:
    if kind == Kind.COPY:
        return
    handle = bytes(range(64)) if kind == Kind.OPEN_POOL else b""
    command = Command(kind, number, size_bytes=size, offset_bytes=offset, handle=handle)
    assert wire.unpack_command(wire.pack_command(command)) == command


@given(
    st.sampled_from(list(Kind)),
    NUMBERS,
    st.none() | st.text(max_size=300),
    st.integers(-1, 1023),
)
def test_answers_go_there_and_back(kind: Kind, number: int, error: str | None, node: int) -> None:
    packet = wire.pack_answer(Answer(kind, number, error, number // 3, node))
    answer = wire.unpack_answer(packet)
    assert len(packet) <= wire.MAX_ANSWER_BYTES
    assert (answer.kind, answer.number, answer.device_bytes) == (kind, number, number // 3)
    assert answer.numa_node == node
    assert (answer.error is None) == (error is None)
    if error is not None and error.isascii():
        assert answer.error == error[: wire.MAX_TEXT_BYTES]


@pytest.mark.parametrize("num_parts", [0, 1, 64, 2047, 2048, 2049, 5000])
def test_a_job_is_cut_into_packets_of_which_the_last_says_so(num_parts: int) -> None:
    parts = np.arange(3 * num_parts, dtype=np.int64).reshape(3, num_parts)
    commands = wire.copy_commands(7, 8, 9, *parts)
    assert [command.last for command in commands] == [False] * (len(commands) - 1) + [True]
    back = []
    for command in commands:
        packet = wire.pack_command(command)
        assert len(packet) <= wire.MAX_COMMAND_BYTES
        read = wire.unpack_command(packet)
        assert (read.kind, read.number, read.pool, read.extent) == (Kind.COPY, 7, 8, 9)
        assert read.last == command.last
        assert read.parts is not None
        back.append(read.parts)
    assert np.array_equal(np.concatenate(back, axis=1), parts)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_read_whole(packet: bytes) -> None:
    for unpack in (wire.unpack_command, wire.unpack_answer):
        try:
            unpack(packet)
        except ValueError:
            continue
        assert len(packet) >= 16


def test_a_short_packet_is_refused() -> None:
    packet = wire.pack_command(wire.copy_commands(1, 1, 1, *np.ones((3, 4), dtype=np.int64))[0])
    for length in range(len(packet)):
        with pytest.raises(ValueError, match="command"):
            wire.unpack_command(packet[:length])
    with pytest.raises(ValueError, match="answer"):
        wire.unpack_answer(b"123")


@pytest.mark.parametrize(
    ("kind", "length"), [(Kind.OPEN_POOL, 0), (Kind.OPEN_POOL, 63), (Kind.MAP_POOL, 64)]
)
def test_a_handle_has_its_length_and_its_command(kind: Kind, length: int) -> None:
    with pytest.raises(ValueError, match="handle"):
        wire.pack_command(Command(kind, 1, handle=bytes(length)))


def test_an_open_with_another_length_is_refused() -> None:
    packet = wire.pack_command(Command(Kind.OPEN_POOL, 1, handle=bytes(64)))
    for other in (packet[:-1], packet + b"x"):
        with pytest.raises(ValueError, match="command"):
            wire.unpack_command(other)

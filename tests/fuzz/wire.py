"""MessagePack taken apart without the decoder under test: tokens, templates, fragments.

A template is a valid message with the place of each value in it, so that a mutation is a few cuts.
Knows the encoding only, nothing of what a message means. Runs in the fuzzer's process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

INT, FLOAT, TEXT, BLOB, NIL, BOOL, ARRAY, MAP, EXT = range(9)
_FIXED: dict[int, tuple[int, int, int]] = {
    **dict.fromkeys((*range(128), *range(224, 256)), (INT, 0, 0)),
    **{0x80 | count: (MAP, 0, count) for count in range(16)},
    **{0x90 | count: (ARRAY, 0, count) for count in range(16)},
    **{0xA0 | size: (TEXT, size, 0) for size in range(32)},
    0xC0: (NIL, 0, 0),
    **dict.fromkeys((0xC2, 0xC3), (BOOL, 0, 0)),
    0xCA: (FLOAT, 4, 0),
    0xCB: (FLOAT, 8, 0),
    **{0xCC + step: (INT, 1 << step, 0) for step in range(4)},
    **{0xD0 + step: (INT, 1 << step, 0) for step in range(4)},
    **{0xD4 + step: (EXT, 1 + (1 << step), 0) for step in range(5)},
}
"""First byte to kind, bytes of content, entries: where the first byte alone says them."""

_LENGTHS = {
    **dict.fromkeys((0xC4, 0xC7, 0xD9), ">B"),
    **dict.fromkeys((0xC5, 0xC8, 0xDA, 0xDC, 0xDE), ">H"),
    **dict.fromkeys((0xC6, 0xC9, 0xDB, 0xDD, 0xDF), ">I"),
}


class BrokenError(Exception):
    """The bytes are not one MessagePack value."""


class Token(NamedTuple):
    """One value within a message.

    Attributes:
        start: first byte.
        head: where its content begins.
        end: behind its last byte, content included.
        kind: INT … EXT.
        entries: of a container, else 0.
        parent: index of the token it is within, -1 for none.
        is_key: whether it names an entry of a map.
    """

    start: int
    head: int
    end: int
    kind: int
    entries: int
    parent: int
    is_key: bool


def tokens(data: bytes) -> list[Token]:
    """All values of a message, outermost first.

    Raises:
        BrokenError: the bytes are not exactly one value.
    """
    found: list[Token] = []
    open_: list[tuple[int, int]] = []  # container, entries still to come
    at = 0
    while True:
        while open_ and open_[-1][1] == 0:
            index, _ = open_.pop()
            found[index] = found[index]._replace(end=at)
        if not open_ and found:
            break
        parent, left = open_[-1] if open_ else (-1, 0)
        is_key = parent >= 0 and found[parent].kind == MAP and left % 2 == 0
        if open_:
            open_[-1] = (parent, left - 1)
        kind, head, body, count = _head(data, at)
        end = head + body
        if end > len(data):
            raise BrokenError("cut short")
        found.append(Token(at, head, end, kind, count, parent, is_key))
        if kind in (ARRAY, MAP):
            open_.append((len(found) - 1, count * (2 if kind == MAP else 1)))
        at = end
    if at != len(data):
        raise BrokenError("bytes behind the value")
    return found


def _head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Kind, where the content begins, its bytes (0 for containers), entries."""
    if at >= len(data):
        raise BrokenError("cut short")
    first = data[at]
    if first in _FIXED:
        kind, body, count = _FIXED[first]
        return kind, at + 1, body, count
    if first == 0xC1:
        raise BrokenError("0xc1 is never used")
    form = _LENGTHS[first]
    size = struct.calcsize(form)
    if at + 1 + size > len(data):
        raise BrokenError("cut short")
    (length,) = struct.unpack_from(form, data, at + 1)
    head = at + 1 + size
    if first >= 0xDC:
        return (ARRAY if first < 0xDE else MAP), head, 0, length
    if first >= 0xD9:
        return TEXT, head, length, 0
    return (BLOB, head, length, 0) if first <= 0xC6 else (EXT, head, length + 1, 0)


def head_of(kind: int, count: int) -> bytes:
    """The header of a container with so many entries."""
    if count < 16:
        return bytes([(0x80 if kind == MAP else 0x90) | count])
    if count < 1 << 16:
        return struct.pack(">BH", 0xDE if kind == MAP else 0xDC, count)
    return struct.pack(">BI", 0xDF if kind == MAP else 0xDD, count)


@dataclass
class Template:
    """A valid message, taken apart.

    Attributes:
        target: which decoder it is for.
        data: the message.
        tokens: its values.
        entries: of each container, (container, first byte, end); a map's with its key.
    """

    target: str
    data: bytes
    tokens: list[Token] = field(default_factory=list)
    entries: list[tuple[Token, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = tokens(self.data)
        for at, token in enumerate(self.tokens):
            if token.is_key:
                value = self.tokens[at + 1]
                self.entries.append((self.tokens[token.parent], token.start, value.end))
            elif token.parent >= 0 and self.tokens[token.parent].kind == ARRAY:
                self.entries.append((self.tokens[token.parent], token.start, token.end))


def encode(value: object) -> bytes:
    """One value, in its shortest form."""
    return msgspec.msgpack.encode(value)


def decode(data: bytes) -> Any:
    """One value, by a decoder that the product does not use."""
    return msgspec.msgpack.decode(data)


def _all(*values: object) -> list[bytes]:
    return [encode(one) for one in values]


def _numbers(bounds: set[int]) -> Iterator[bytes]:
    for number in sorted(bounds):
        if -(1 << 63) <= number < 1 << 64:
            yield encode(number)
    yield b"\xcc\x01"
    yield b"\xcf" + bytes(7) + b"\x01"
    yield b"\xd3" + b"\xff" * 8


def _deep(levels: int, opener: bytes, inner: bytes) -> bytes:
    return opener * levels + inner


def fragments(bounds: set[int], names: set[str]) -> dict[int, list[bytes]]:
    """Values worth a try at any place, by kind.

    Args:
        bounds: limits of the protocol.
        names: every field's name.
    """
    around = {bound + step for bound in bounds for step in (-1, 0, 1)}
    around |= {(1 << bits) + step for bits in (7, 8, 15, 16, 31, 32, 62, 63) for step in (-1, 0, 1)}
    around |= {-1, -2, -128, -129, -(1 << 31), -(1 << 63), 0, 1, 2, 3}
    sizes = (0, 1, 3, 4, 8, 15, 16, 17, 32, 48, 63, 64, 65, 1024, 4096)
    texts = [*sorted(names), "", "x", "é" * 512, "x" * 512, "x" * 513, "\U0001f600" * 512]
    texts += ["x" * 2048, "x" * 2049, "\0", "memfd", "ring", "cuda_ipc", "hello", "pool"]
    return {
        INT: list(_numbers(around)),
        FLOAT: [encode(one) for one in (0.0, -0.0, 1.0, 1e308, 3600.0, 3600.1, 5e-324)]
        + [b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x7f\xf0" + bytes(6), b"\xca\x7f\xc0\0\0"],
        TEXT: [encode(one) for one in texts] + [b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80", b"\xa1\x80"],
        BLOB: [encode(bytes(size)) for size in sizes] + [encode(b"\xff" * size) for size in sizes],
        NIL: [b"\xc0"],
        BOOL: [b"\xc2", b"\xc3"],
        ARRAY: _all([], [None], [[]], [1, "x"], [[[]]] * 40)
        + [_deep(levels, b"\x91", b"\xc0") for levels in (50, 510, 513, 1025)]
        + [b"\xdd\0\0\x08\x00" + b"\xc0" * 2048, b"\xdd\0\0\x08\x01" + b"\xc0" * 2049]
        + [b"\xdd\0\0\x07\xff" + b"\x90" * 2047, b"\xdc\x00\x02" + _pile(2) + _pile(3)],
        MAP: [
            *_all({}, {"x": 1}, {"type": "memfd"}, {"x": {}}),
            *(b"\x82\xa1a\x01\xa1a\x02", b"\x81\x01\x01", b"\x81\xc4\x01a\x01", b"\x81\x90\x01"),
            *(_deep(200, b"\x81\xa1x", b"\xc0"), b"\xde\x04\x01" + b"\xa1x\xc0" * 1025),
        ],
        EXT: [b"\xd4\x01\0", b"\xd6\xff\0\0\0\0", b"\xc7\0\x01", b"\xc9\xff\xff\xff\xff\x01"],
    }


def _pile(width: int) -> bytes:
    """Some thousand small containers: many, yet no array of them is too long."""
    return b"\xdd\0\0\x07\xff" + (b"\x90" if width == 2 else b"\x80") * 2047


#: Lengths that are stated and not there, and a byte that starts nothing.
HUGE = (
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\x7f\xff\xff\xff",
    b"\xc5\xff\xff",
    b"\xc1",
)

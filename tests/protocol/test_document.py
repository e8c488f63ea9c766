"""docs/protocol.md says what the code does: fields, ranges, numbers, limits, vectors, examples.

The document has its own notation for types; ``notation`` derives the same text from the structs,
so a change of either without the other fails here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol import codec, extents, frames, limits, messages, side
from protocol.errors import RETRYABLE, ErrorCode
from protocol.ids import ArenaId
from protocol.namespace import Namespace, fingerprint
from tests.protocol import notation, strategies
from tests.protocol.test_extents import GOLDEN_HEADER, GOLDEN_RECORD
from tests.protocol.test_keys import CHAINS, SEEDS
from tests.protocol.test_side import TYPES
from tests.repository import tree

PAGE = tree.text("docs/protocol.md")
HEX = re.compile(r"`([0-9a-f]{32,})`")


def sections() -> dict[str, str]:
    """Heading to the text below it, up to the next heading of any level."""
    parts = re.split(r"^#{1,4} (.+)$", PAGE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SECTIONS = sections()


def table_rows(text: str) -> list[list[str]]:
    """Cells of the first table in a text, without its head."""
    found = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)*)", text, re.M)
    assert found is not None, "no table"
    lines = found.group(1).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def stated(text: str) -> dict[str, tuple[str, str]]:
    rows = table_rows(text)
    assert all(len(row) == 4 and row[3] for row in rows)
    return {row[0].strip("`"): (row[1], row[2]) for row in rows}


def after(marker: str) -> str:
    """Text after a comment that marks a table or a block."""
    assert PAGE.count(f"<!-- {marker} -->") == 1
    return PAGE.split(f"<!-- {marker} -->")[1]


def block(marker: str) -> str:
    found = re.match(r"\n```\w*\n(.*?)```", after(marker), re.S)
    assert found is not None
    return found.group(1).strip()


@pytest.mark.parametrize("op", messages.Op, ids=lambda op: op.name)
def test_operations_with_every_field(op: messages.Op) -> None:
    text = SECTIONS[f"{op.name} ({int(op)})"]
    request, reply = messages.REQUEST_TYPES[op], messages.REPLY_TYPES[op]
    asked, _, answered = text.partition(f"\nReply `{reply.__name__}`")
    assert f"\nRequest `{request.__name__}`" in asked
    assert answered
    for kind, part in ((request, asked), (reply, answered)):
        expected = notation.rows(kind)
        if expected:
            assert stated(part) == expected
        else:
            assert ": an empty map." in part


def test_no_operation_too_many() -> None:
    named = re.findall(r"^### ([A-Z_]+) \((\d+)\)$", PAGE, re.M)
    assert [(name, int(number)) for name, number in named] == [
        (op.name, int(op)) for op in messages.Op
    ]


@pytest.mark.parametrize("kind", strategies.PARTS + strategies.PACKETS, ids=lambda k: k.__name__)
def test_structures_and_packets(kind: type[Any]) -> None:
    assert stated(SECTIONS[kind.__name__]) == notation.rows(kind)
    if kind in strategies.PACKETS:
        assert f'`type` is `"{TYPES[kind.__name__]}"`' in SECTIONS[kind.__name__]
    if kind.__name__.endswith("Memory"):
        tag = kind.__struct_config__.tag
        assert f'`type` is `"{tag}"`' in SECTIONS[kind.__name__]


def test_envelopes() -> None:
    text = SECTIONS["Envelope"]
    first, second = text.split("Reply frame")
    for part, kind in ((first, frames.RequestEnvelope), (second, frames.ReplyEnvelope)):
        rows = [(row[1].strip("`"), row[2]) for row in table_rows(part)]
        expected = {name: pair[0] for name, pair in notation.rows(kind).items()}
        assert rows == list({**expected, "body": "map"}.items())


def test_error_codes() -> None:
    head, _, rest = SECTIONS["Errors"].partition("| code | number |")
    assert stated(head) == notation.rows(messages.ErrorBody)
    rows = table_rows("| code | number |" + rest)
    assert [(row[0], int(row[1]), row[2]) for row in rows] == [
        (code.name, int(code), "yes" if code in RETRYABLE else "no") for code in ErrorCode
    ]
    assert all(len(row) == 5 and row[3] and row[4] for row in rows)


def test_error_codes_named_anywhere_exist() -> None:
    known = {*ErrorCode.__members__, *messages.StopReason.__members__, *vars(limits)}
    known |= {*messages.Op.__members__}
    named = set(re.findall(r"(?<![`\w/$-])([A-Z]+(?:_[A-Z0-9]+)+)(?![\w`])", PAGE))
    assert named - known == set()


def test_stop_reasons() -> None:
    text = SECTIONS["STORE (20)"]
    rows = table_rows(text[text.index("| StopReason |") :])
    assert {row[0]: int(row[1]) for row in rows} == {
        stop.name: int(stop) for stop in messages.StopReason
    }


def test_limits() -> None:
    rows = table_rows(SECTIONS["Limits"])
    expected = {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}
    assert {row[0]: int(row[1]) for row in rows} == expected


def test_version() -> None:
    spoken = f"{messages.VERSION_MAJOR}.{messages.VERSION_MINOR}"
    assert PAGE.startswith(f"# The kvkeep protocol, version {spoken}\n")


def test_key_vectors() -> None:
    rows = table_rows(after("vectors: seeds"))
    assert [HEX.findall(row[1]) for row in rows] == [[scope.seed().hex()] for scope, _, _ in SEEDS]
    chains = table_rows(after("vectors: chains"))
    assert [HEX.findall(row[4]) for row in chains] == [keys for *_, keys in CHAINS]
    assert [int(row[1]) for row in chains] == [size for _, size, _, _, _ in CHAINS]


def test_namespace_vectors() -> None:
    vectors = json.loads(block("vectors: namespaces"))
    assert len(vectors) == 2
    for vector in vectors:
        plain = vector["namespace"]
        for name in ("config_digest", "weights_digest"):
            plain[name] = bytes.fromhex(plain[name])
        namespace = codec.struct_from_plain(plain, Namespace)
        assert fingerprint(namespace).hex() == vector["fingerprint"]


@pytest.mark.parametrize(
    ("marker", "dtype"),
    [("layout: header", extents.HEADER_DTYPE), ("layout: record", extents.RECORD_DTYPE)],
)
def test_layouts_byte_by_byte(marker: str, dtype: np.dtype[Any]) -> None:
    assert dtype.fields is not None
    expected = []
    for name, (field, offset, *_) in dtype.fields.items():
        last = offset + field.itemsize - 1
        span = str(offset) if field.itemsize == 1 else f"{offset}..{last}"
        kind = f"u{8 * field.itemsize}" if field.kind == "u" else f"{field.itemsize} bytes"
        expected.append([span, name, kind])
    assert [row[:3] for row in table_rows(after(marker))] == expected


def test_extent_vectors() -> None:
    assert bytes.fromhex(block("vectors: extent header")) == GOLDEN_HEADER
    assert bytes.fromhex(block("vectors: extent record")) == GOLDEN_RECORD
    assert extents.unpack_header(GOLDEN_HEADER)[1] == ArenaId(bytes(range(0x30, 0x40)))


def test_example_frames_are_what_the_text_says() -> None:
    hello = messages.Hello(
        token=bytes(range(0x10, 0x20)),
        instance=bytes(range(16)),
        major=1,
        minor=0,
        client="example",
    )
    keys = b"".join(map(bytes.fromhex, CHAINS[0][4]))
    lookup = messages.Lookup(session=1, request=7, start=0, keys=keys)
    epoch, arena = bytes(range(0x20, 0x30)), bytes(range(0x30, 0x40))
    for name, body, rest in (
        ("HELLO", hello, (1,)),
        ("LOOKUP", lookup, (2, epoch, arena, 1_000_000_000)),
    ):
        frame = bytes.fromhex(block(f"example: {name}"))
        assert frame == frames.pack_request(body, *rest)
        assert frames.request_body(frames.unpack_request(frame)) == body


def test_example_replies_are_what_the_text_says() -> None:
    reply = frames.unpack_reply(bytes.fromhex(block("example: LOOKUP reply")))
    assert reply.body == messages.LookupReply(lease=bytes(range(0x40, 0x50)), ready=2)
    refusal = frames.unpack_reply(bytes.fromhex(block("example: error reply")))
    assert refusal.error is not None
    assert refusal.error.code is ErrorCode.STALE_EPOCH
    assert (refusal.op, refusal.seq) == (reply.op, reply.seq) == (messages.Op.LOOKUP, 2)


def test_sizes_said_in_passing() -> None:
    assert f"at most {limits.MAX_SIDE_BYTES} bytes" in SECTIONS["Side socket"]
    assert f"at most {4 * limits.MAX_TEXT_CHARS} bytes of UTF-8" in SECTIONS["Limits"]
    assert (
        f"at most {limits.MAX_CONNECTIONS_PER_TOKEN} connections" in SECTIONS["HELLO (1)"].lower()
    )
    assert f"{limits.MAX_STORES_PER_SESSION} stores" in SECTIONS["STORE (20)"]
    assert f"beyond {limits.MAX_SLOTS_PER_REPLY}" in SECTIONS["RETRIEVE (12)"]
    assert f"{limits.MAX_LIVE_REQUESTS} requests" in SECTIONS["LOOKUP (10)"]


def test_every_packet_of_the_side_socket_is_covered() -> None:
    unions = msgspec.inspect.type_info(side.FromClient), msgspec.inspect.type_info(side.FromServer)
    kinds = {one.cls for union in unions for one in union.types}  # type: ignore[attr-defined]
    assert kinds == set(strategies.PACKETS)

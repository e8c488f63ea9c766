"""Frames as a version of the protocol spoke them, kept for ever: ``frames-MAJOR.MINOR``.

``python -m tests.compat.corpus`` writes those of this tree's version, several of each message with
some fields and others; once a version was released, its frames are never written again. Each line
has the kind, the frame in hex, and its body as JSON, in which bytes are ``{"hex": ...}``. Knows the
wire's own types, as the fuzzer's samples do. Runs by hand, and in the pytest process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import inspect

from protocol import codec, messages, side
from tests.fuzz.samples import sample

FOLDER = Path(__file__).parent
PER_KIND = 4
VERSION = f"{messages.VERSION_MAJOR}.{messages.VERSION_MINOR}"
SCOPE = (b"E" * 16, b"A" * 16)


def kinds() -> dict[str, type[Any]]:
    """Every message that can be sent, by name; a reply's has its operation in it."""
    found: dict[str, type[Any]] = {"ErrorBody": messages.ErrorBody}
    for op, request in messages.REQUEST_TYPES.items():
        name = messages.Op(op).name
        found[f"{name} request"] = request
        found[f"{name} reply"] = messages.REPLY_TYPES[op]
    for packet in (*side.FromClient.__args__, *side.FromServer.__args__):
        found[f"packet {packet.__name__}"] = packet
    return found


def op_of(name: str) -> int:
    """The operation of a request or reply."""
    return int(messages.Op[name.split()[0]])


def framed(name: str, body: Any) -> bytes:
    """What travels for a body.

    Args:
        name: of ``kinds``.
        body: as plain values.
    """
    if name.startswith("packet"):
        return codec.bytes_from_struct(body)
    if name == "ErrorBody":
        return codec.bytes_from_struct((int(messages.Op.PING), 7, 401, body))
    if name.endswith("reply"):
        return codec.bytes_from_struct((op_of(name), 7, 0, body))
    scope = (b"", b"") if name.startswith("HELLO") else SCOPE
    return codec.bytes_from_struct((op_of(name), 7, *scope, 1_000_000_000, body))


def bodies(kind: type[Any], draw: random.Random) -> Iterator[dict[str, Any]]:
    """Plain bodies: with what is required alone, with all, and with some."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for number in range(PER_KIND):
        fields = {
            one.encode_name: sample(one.type, draw)
            for one in info.fields
            if one.required or number == 1 or (number > 1 and draw.random() < 0.5)
        }
        if info.tag_field is not None:
            fields[info.tag_field] = info.tag
        yield fields


def written() -> str:
    """The frames of this tree, as their file has them."""
    lines = []
    for name, kind in sorted(kinds().items()):
        draw = random.Random(name)
        for body in bodies(kind, draw):
            line = {"kind": name, "frame": framed(name, body).hex(), "body": _told(body)}
            lines.append(json.dumps(line, sort_keys=True))
    return "\n".join(lines) + "\n"


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: _told(one) for key, one in value.items()}
    return [_told(one) for one in value] if isinstance(value, list | tuple) else value


def _meant(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"hex"}:
            return bytes.fromhex(value["hex"])
        return {key: _meant(one) for key, one in value.items()}
    return [_meant(one) for one in value] if isinstance(value, list) else value


def read(version: str) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Kind, frame and plain body of each frame of a version."""
    for line in (FOLDER / f"frames-{version}.jsonl").read_text(encoding="ascii").splitlines():
        found = json.loads(line)
        yield found["kind"], bytes.fromhex(found["frame"]), _meant(found["body"])


if __name__ == "__main__":
    (FOLDER / f"frames-{VERSION}.jsonl").write_text(written(), encoding="ascii")

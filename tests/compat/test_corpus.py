"""What a version of the protocol said is understood for ever, and means the same.

A frame that is not decoded any more, or to another value, is an incompatible change: it needs a
new major version, and not a new corpus.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any

import msgspec
import pytest

from protocol import frames, side
from protocol.errors import RequestError
from tests.compat import corpus

VERSIONS = sorted(
    path.stem.removeprefix("frames-") for path in corpus.FOLDER.glob("frames-*.jsonl")
)


def decoded(name: str, frame: bytes) -> Any:
    """The body that travelled in a frame, as this tree reads it."""
    if name.startswith("packet"):
        kind = name.split()[1]
        is_clients = kind in {one.__name__ for one in side.FromClient.__args__}
        return (side.unpack_from_client if is_clients else side.unpack_from_server)(frame)
    if name.endswith("request"):
        envelope = frames.unpack_request(frame)
        assert (envelope.op, envelope.seq) == (corpus.op_of(name), 7)
        assert envelope.deadline_ns == 1_000_000_000
        return frames.request_body(envelope)
    reply = frames.unpack_reply(frame)
    if reply.error is not None:
        return {
            "message": reply.error.message,
            "retryable": reply.error.retryable,
            "detail": reply.error.detail,
        }
    assert (reply.op, reply.seq) == (corpus.op_of(name), 7)
    return reply.body


def plain(value: Any) -> Any:
    """A body as plain values, with every field that it has."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag_field is None else {config.tag_field: config.tag}
        return {**tag, **{name: plain(getattr(value, name)) for name in value.__struct_fields__}}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, IntEnum) else value


def contains(whole: Any, part: Any) -> bool:
    """Whether a value has all that another one has; later fields may have come."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and contains(whole[key], one) for key, one in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(contains, whole, part))
    alike = type(whole) is type(part) or (type(whole) is float and type(part) is int)
    return alike and bool(whole == part)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_frame_is_understood_and_means_what_it_meant(version: str) -> None:
    for name, frame, body in corpus.read(version):
        found = plain(decoded(name, frame))
        assert contains(found, body), (name, frame.hex(), found)


def test_each_message_of_this_version_is_kept() -> None:
    assert corpus.VERSION in VERSIONS, "python -m tests.compat.corpus"
    kept = Counter(name for name, _, _ in corpus.read(corpus.VERSION))
    wanted = dict.fromkeys(corpus.kinds(), corpus.PER_KIND)
    assert kept == wanted, "python -m tests.compat.corpus keeps the frames of what is new"


def test_the_comparison_misses_nothing() -> None:
    assert contains({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]})
    assert contains({"a": 2.0}, {"a": 2})
    for whole, part in (({"a": True}, {"a": 1}), ({"a": [1]}, {"a": [1, 2]}), ({}, {"a": 1})):
        assert not contains(whole, part)
    with pytest.raises(RequestError, match="missing required field"):
        decoded("STORE request", corpus.framed("STORE request", {"session": 1}))

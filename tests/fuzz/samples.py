"""Valid messages of every kind, drawn from the wire's own types.

Knows msgspec's view of a type, so a message is fuzzed from the day it exists. Runs in the fuzzer's
process.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from msgspec import inspect

from protocol import limits, messages, side
from protocol.namespace import Namespace
from tests.fuzz import wire
from tests.fuzz.wire import Template

TARGETS = ("request", "reply", "client", "server", "namespace")
_TEXTS = ("", "x", "float32", "kvkeep 1", "é", "\U0001f600\0")
_EDGES = 0.25
_PER_KIND = 12


def sample(kind: Any, draw: random.Random) -> Any:
    """One valid plain value of a type, its limits among the likely ones.

    Args:
        kind: from ``msgspec.inspect.type_info``.
        draw: makes the choices.
    """
    if isinstance(kind, inspect.Metadata):
        return sample(kind.type, draw)
    if isinstance(kind, inspect.IntType):
        return _int(kind, draw)
    if isinstance(kind, inspect.FloatType):
        return draw.choice((0.5, 1.0, float(kind.le or 1), 2))
    if isinstance(kind, inspect.BytesType | inspect.StrType | inspect.VarTupleType):
        return _sized(kind, draw)
    if isinstance(kind, inspect.DictType):
        keys = draw.sample(_TEXTS, draw.randrange(3))
        return {key: sample(kind.value_type, draw) for key in keys}
    if isinstance(kind, inspect.UnionType):
        return sample(draw.choice(kind.types), draw)
    if isinstance(kind, inspect.EnumType):
        number: int = draw.choice([one.value for one in kind.cls])
        return number
    if isinstance(kind, inspect.StructType):
        return _struct(kind, draw)
    return draw.random() < 0.5 if isinstance(kind, inspect.BoolType) else None


def _int(kind: inspect.IntType, draw: random.Random) -> int:
    low = -(1 << 63) if kind.ge is None else int(kind.ge)
    high = int(kind.le) if kind.le is not None else (1 << 63) - 1
    if kind.lt is not None:
        high = int(kind.lt) - 1
    if draw.random() < _EDGES:
        return draw.choice((low, high))
    return draw.randint(max(low, -8), min(high, max(low, -8) + 40))


def _sized(kind: Any, draw: random.Random) -> Any:
    least = kind.min_length or 0
    most = least + 64 if kind.max_length is None else kind.max_length
    if isinstance(kind, inspect.StrType):
        return "x" * least + draw.choice(_TEXTS)
    if isinstance(kind, inspect.BytesType):
        size = min(most, draw.choice((least, least, 16, 32, 64, least + 4)))
        return draw.randbytes(max(least, size))
    size = draw.randint(least, min(most, least + 2))
    return [sample(kind.item_type, draw) for _ in range(size)]


def _struct(kind: inspect.StructType, draw: random.Random) -> dict[str, Any]:
    fields = {
        one.encode_name: sample(one.type, draw)
        for one in kind.fields
        if one.required or draw.random() < 0.7
    }
    if kind.tag_field is not None:
        fields[kind.tag_field] = kind.tag
    return fields


def _plain(struct: type[Any], draw: random.Random) -> dict[str, Any]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return _struct(info, draw)


def _request(op: int, draw: random.Random) -> bytes:
    body = _plain(messages.REQUEST_TYPES[op], draw)
    scope = b"" if draw.random() < 0.2 else b"E" * 16
    return wire.encode([op, draw.choice((1, 7, limits.MAX_U32)), scope, scope, 0, body])


def _reply(op: int, draw: random.Random) -> bytes:
    if draw.random() < 0.2:
        code = draw.choice((100, 203, 401, 501, 999, limits.MAX_U32))
        return wire.encode([op, 1, code, _plain(messages.ErrorBody, draw)])
    return wire.encode([op, 1, 0, _plain(messages.REPLY_TYPES[op], draw)])


def _fullest(draw: random.Random) -> bytes:
    """A registration with as many arrays and maps as a frame may have."""
    op = int(messages.Op.REGISTER_KV_CACHE)
    region = {"offset_bytes": 0, "size_bytes": 1, "stride_bytes": 1}
    body = _plain(messages.REQUEST_TYPES[op], draw)
    body["namespace"].setdefault("overrides", {})  # or it has one more when it is encoded again
    pools = [{"shard": shard, "num_pages": 1, "regions": [region] * 2000} for shard in range(2)]
    body["pools"] = [*pools, {"shard": 2, "num_pages": 1, "regions": [region]}]
    frame = [op, 1, b"E" * 16, b"E" * 16, 0, body]
    found = wire.tokens(wire.encode(frame))
    used = sum(token.kind in (wire.ARRAY, wire.MAP) for token in found)
    body["pools"][2]["regions"] = [region] * (1 + limits.MAX_CONTAINERS - used)
    return wire.encode(frame)


def _packets(union: Any) -> tuple[type[Any], ...]:
    kinds: tuple[type[Any], ...] = getattr(union, "__args__", (union,))
    return kinds


@cache
def templates(seed: int = 4) -> tuple[Template, ...]:
    """Valid messages of every operation, reply, packet and namespace, taken apart.

    Args:
        seed: of the draws; fixed unless a run wants others.
    """
    draw = random.Random(seed)
    made: list[tuple[str, bytes]] = []
    for op in sorted(messages.REQUEST_TYPES):
        made += [("request", _request(op, draw)) for _ in range(_PER_KIND)]
        made += [("reply", _reply(op, draw)) for _ in range(_PER_KIND)]
    # The largest of all, and all of its parts: drawn more often.
    made.append(("request", _fullest(draw)))
    made += [("request", _request(int(messages.Op.REGISTER_KV_CACHE), draw)) for _ in range(40)]
    for target, union in (("client", side.FromClient), ("server", side.FromServer)):
        for kind in _packets(union):
            made += [(target, wire.encode(_plain(kind, draw))) for _ in range(_PER_KIND)]
    made += [("namespace", wire.encode(_plain(Namespace, draw))) for _ in range(30)]
    return tuple(Template(target, data) for target, data in made)


def bounds() -> set[int]:
    """Every limit of the protocol."""
    return {value for name, value in vars(limits).items() if name.startswith("MAX_")}

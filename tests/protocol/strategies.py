"""Hypothesis strategies and edge values derived from the wire's structs themselves.

Knows msgspec's view of a type, nothing of what a message means, so a new message is covered the
moment it exists. Runs in the pytest process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from protocol import codec, messages, side
from protocol.errors import RequestError
from protocol.events import KvEvent
from protocol.layout import CudaIpcMemory, MemfdMemory, Region, RingMemory, ShardPool
from protocol.namespace import LayerGroup, Namespace
from protocol.quotas import QuotaChange, QuotaRow
from protocol.status import (
    CopierStatus,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
    ServerStatus,
    SlowRequest,
    TierStatus,
)

PACKETS: tuple[type[Any], ...] = (
    side.SideHello,
    side.Welcome,
    side.PoolOffer,
    side.Drained,
    side.PoolAccepted,
    side.ExtentGiven,
    side.ExtentTaken,
    side.SideError,
)
PARTS: tuple[type[Any], ...] = (
    Namespace,
    LayerGroup,
    MemfdMemory,
    CudaIpcMemory,
    RingMemory,
    ShardPool,
    Region,
    ServerStatus,
    EngineStatus,
    NamespaceStatus,
    TierStatus,
    CopierStatus,
    OpLatency,
    SlowRequest,
    KvEvent,
    QuotaChange,
    QuotaRow,
)
REQUESTS: tuple[type[Any], ...] = tuple(messages.REQUEST_TYPES.values())
REPLIES: tuple[type[Any], ...] = tuple(dict.fromkeys(messages.REPLY_TYPES.values()))
BODIES: tuple[type[Any], ...] = (*REQUESTS, *REPLIES, messages.ErrorBody)

_SPARE = 3  # entries beyond the least, so that examples stay small


def _upto(kind: Any, spare: int) -> int:
    least = kind.min_length or 0
    most = kind.max_length if kind.max_length is not None else least + spare
    return int(min(most, least + spare))


def _int(kind: inspect.IntType) -> tuple[int, int]:
    low = -(1 << 63) if kind.ge is None else kind.ge
    high = kind.le if kind.le is not None else (1 << 63) - 1 if kind.lt is None else kind.lt - 1
    return int(low), int(high)


def from_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type.

    Args:
        kind: from ``msgspec.inspect.type_info``.

    Returns:
        A strategy of valid values, small ones and the ends of each range included.
    """
    if isinstance(kind, inspect.Metadata):
        return from_type(kind.type)
    if isinstance(kind, inspect.IntType):
        low, high = _int(kind)
        return st.integers(low, high) | st.sampled_from((low, high))
    if isinstance(kind, inspect.FloatType):
        least = 0.001 if kind.ge is None else float(kind.ge)
        return st.floats(least, float(kind.le or 1), allow_nan=False)
    if isinstance(kind, inspect.BytesType):
        return st.binary(min_size=kind.min_length or 0, max_size=_upto(kind, 64))
    if isinstance(kind, inspect.StrType):
        return st.text(min_size=kind.min_length or 0, max_size=_upto(kind, 12))
    if isinstance(kind, inspect.VarTupleType):
        item = from_type(kind.item_type)
        most = _upto(kind, _SPARE)
        return st.lists(item, min_size=kind.min_length or 0, max_size=most).map(tuple)
    if isinstance(kind, inspect.DictType):
        pair = from_type(kind.key_type), from_type(kind.value_type)
        return st.dictionaries(*pair, max_size=_upto(kind, _SPARE))
    if isinstance(kind, inspect.UnionType):
        return st.one_of([from_type(one) for one in kind.types])
    if isinstance(kind, inspect.EnumType):
        return st.sampled_from(list(kind.cls))
    if isinstance(kind, inspect.StructType):
        fields = {one.name: from_type(one.type) for one in kind.fields}
        return st.builds(kind.cls, **fields)
    return {inspect.BoolType: st.booleans(), inspect.NoneType: st.none()}[type(kind)]


def values(struct: type[Any]) -> st.SearchStrategy[Any]:
    """Valid instances of a struct."""
    return from_type(inspect.type_info(struct))


def fields(struct: type[Any]) -> tuple[inspect.Field, ...]:
    """The fields of a struct."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _sized(kind: Any, make: Callable[[int], Any]) -> Iterator[Any]:
    if kind.min_length:
        yield make(kind.min_length - 1)
    if kind.max_length is not None:
        yield make(kind.max_length + 1)


def just_outside(kind: Any) -> list[Any]:
    """Plain values right beyond a type's range, and values of other types.

    Args:
        kind: from ``msgspec.inspect.type_info``.

    Returns:
        Values that must be refused; empty lists only for a struct's own fields, which their own
        test covers.
    """
    if isinstance(kind, inspect.Metadata):
        return just_outside(kind.type)
    if isinstance(kind, inspect.IntType):
        low, high = _int(kind)
        beyond = [low - 1] if kind.ge is not None else []
        beyond += [high + 1] if kind.le is not None or kind.lt is not None else []
        return [*beyond, True, 1.0, "1", b"1", None]
    if isinstance(kind, inspect.FloatType):
        over = float(kind.le or 0) + 1
        zero = [0.0] if kind.ge is None else []
        return [*zero, -1.0, over, float("nan"), float("inf"), True, "1", None]
    if isinstance(kind, inspect.BytesType):
        return [*_sized(kind, bytes), "text", 1, None, [1]]
    if isinstance(kind, inspect.StrType):
        return [*_sized(kind, lambda n: "x" * n), b"bytes", 1, None]
    if isinstance(kind, inspect.VarTupleType):
        return [*_sized(kind, lambda n: [None] * n), "x", 1, None, {}]
    if isinstance(kind, inspect.DictType):
        return [[], 1, None, {1: "x"}, {b"k": "x"}]
    if isinstance(kind, inspect.BoolType):
        return [0, 1, "true", None]
    if isinstance(kind, inspect.EnumType):
        return [-1, 1 << 20, "NONE", True, 1.0]
    return [1, "x", [None]]


@functools.cache
def _valid_bytes(struct: Hashable) -> bytes:
    assert isinstance(struct, type)
    found: list[bytes] = []

    @settings(
        max_examples=1, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(values(struct))
    def draw(value: Any) -> None:
        found.append(codec.bytes_from_struct(value))

    draw()
    return found[0]


def valid_plain(struct: type[Any]) -> dict[str, Any]:
    """One valid value of a struct as plain values, the same in each call."""
    plain: dict[str, Any] = codec.plain_from_bytes(_valid_bytes(cast(Hashable, struct)))
    return plain


def refused(plain: Any, struct: type[Any]) -> bool:
    """Whether plain values are refused as a struct; any other exception goes through."""
    try:
        codec.struct_from_plain(plain, struct)
    except RequestError:
        return True
    return False

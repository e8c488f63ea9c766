"""How docs/protocol.md writes a field's type and default, derived from the code's structs.

Knows msgspec's view of a struct, nothing of what the messages mean. Runs in the pytest process.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from protocol.ids import ID_BYTES

POWERS = {(1 << 63) - 1: "2^63-1", (1 << 32) - 1: "2^32-1", (1 << 31) - 1: "2^31-1"}


def number(value: int | float) -> str:
    """A bound as the document writes it: large powers of two by name."""
    if isinstance(value, float):
        return f"{value:g}"
    if value >= 1 << 20 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return POWERS.get(value, str(value))


def _span(low: int | None, high: int | None) -> str:
    if low == high:
        return number(low or 0)
    return f"{low or 0}..{number(high or 0)}"


def _int(kind: inspect.IntType) -> str:
    high = kind.le if kind.le is not None else (kind.lt - 1 if kind.lt is not None else None)
    return "int" if high is None else f"int {kind.ge}..{number(high)}"


def _union(kind: inspect.UnionType) -> str:
    parts = [describe(one) for one in kind.types]
    return " or ".join(parts)


def describe(kind: Any) -> str:
    """The notation of one type.

    Args:
        kind: from ``msgspec.inspect.type_info``.

    Returns:
        Text such as ``int 1..2^63-1``, ``bytes 16`` or ``array 1..64 of LayerGroup``.
    """
    if isinstance(kind, inspect.Metadata):
        return describe(kind.type)
    if isinstance(kind, inspect.IntType):
        return _int(kind)
    if isinstance(kind, inspect.FloatType):
        least = f">{number(kind.gt or 0)}" if kind.ge is None else number(kind.ge)
        return f"float {least}..{number(kind.le or 0)}"
    if isinstance(kind, inspect.BytesType):
        if (kind.min_length or 0, kind.max_length) == (0, ID_BYTES):
            return f"bytes 0 or {ID_BYTES}"  # an optional identifier
        return f"bytes {_span(kind.min_length, kind.max_length)}"
    if isinstance(kind, inspect.StrType):
        return f"text {_span(kind.min_length, kind.max_length)}"
    if isinstance(kind, inspect.VarTupleType):
        span = _span(kind.min_length, kind.max_length)
        return f"array {span} of {describe(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        keys, values = describe(kind.key_type), describe(kind.value_type)
        return f"map {_span(kind.min_length, kind.max_length)} of {keys} to {values}"
    if isinstance(kind, inspect.UnionType):
        return _union(kind)
    if isinstance(kind, inspect.StructType | inspect.EnumType):
        return kind.cls.__name__
    return {
        inspect.BoolType: "bool",
        inspect.NoneType: "nil",
        inspect.AnyType: "any",
    }[type(kind)]


def default(field: inspect.Field) -> str:
    """The default as the document writes it, or ``required``."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    return {"": "empty", b"": "empty", (): "empty"}.get(value, repr(value)) if value else "empty"


def rows(struct: type[Any]) -> dict[str, tuple[str, str]]:
    """Field name to (type, default) of a struct."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {one.encode_name: (describe(one.type), default(one)) for one in info.fields}

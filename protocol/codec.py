"""Bytes to structs and back, under named limits.

Purpose: `msgpack` turns bytes into plain values within bounds, `msgspec.convert` turns those into
typed structs, strictly: no unknown field, no coercion, no duplicate key. Must not know: sockets,
sessions. Runs in: every process.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
import msgspec

from protocol import limits
from protocol.errors import ErrorCode, RequestError

T = TypeVar("T")

_MAX_ARRAY = limits.MAX_REGIONS
_MAX_MAP = 1024


class _Containers:
    """Hooks for one value: refuse what is ambiguous, and more containers than allowed.

    Without the count, one frame of empty maps would cost the loop a quarter of a second.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = limits.MAX_CONTAINERS

    def list_hook(self, items: list[Any]) -> list[Any]:
        self._count()
        return items

    def map_hook(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._count()
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a map names a key twice")
        return result

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {limits.MAX_CONTAINERS} arrays and maps")


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not used by this protocol")


def plain_from_bytes(data: bytes, max_bytes: int = limits.MAX_FRAME_BYTES) -> Any:
    """Decodes one MessagePack value under the wire's limits.

    Args:
        data: exactly one value.
        max_bytes: longest input accepted.

    Returns:
        Plain Python values.

    Raises:
        RequestError: TOO_LARGE or MALFORMED; nothing else, whatever the bytes.
    """
    if len(data) > max_bytes:
        raise RequestError(
            ErrorCode.TOO_LARGE,
            f"{len(data)} bytes, at most {max_bytes} are accepted",
            bytes=len(data),
            max_bytes=max_bytes,
        )
    containers = _Containers()
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            list_hook=containers.list_hook,
            object_pairs_hook=containers.map_hook,
            ext_hook=_no_extension,
            max_str_len=4 * limits.MAX_TEXT_CHARS,
            max_bin_len=max_bytes,
            max_array_len=_MAX_ARRAY,
            max_map_len=_MAX_MAP,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise RequestError(
            ErrorCode.MALFORMED, f"not one MessagePack value within limits: {_line(error)}"
        ) from error


def struct_from_plain(value: Any, kind: type[T]) -> T:
    """Checks plain values against a struct type.

    Args:
        value: from ``plain_from_bytes``.
        kind: struct type, whose annotations hold the ranges.

    Returns:
        The struct.

    Raises:
        RequestError: MALFORMED, naming the field and what is valid.
    """
    try:
        return msgspec.convert(value, kind, strict=True, builtin_types=(bytes,))
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise RequestError(ErrorCode.MALFORMED, _line(error)) from error


def bytes_from_struct(value: Any) -> bytes:
    """Encodes a struct or plain value.

    Args:
        value: built by this side, so it is within limits.

    Returns:
        One MessagePack value.

    Raises:
        RequestError: INVALID_ARGUMENT for text that is no Unicode (a lone surrogate, as a file
            name may hold) or an integer beyond 64 bits.
    """
    try:
        return msgspec.msgpack.encode(value)
    except (UnicodeEncodeError, OverflowError) as error:
        raise RequestError(ErrorCode.INVALID_ARGUMENT, f"cannot be sent: {_line(error)}") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[: limits.MAX_TEXT_CHARS // 2]

"""docs/protocol.md as a checker: what a decoder let through must be what the page allows.

The page's tables are compiled to checks of plain values, and the raw bytes are looked at by
``wire``: neither uses the decoder under test, so a limit that is lost in the code is missed by
nobody. Runs in the fuzzer's process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from protocol import limits
from tests.fuzz import wire
from tests.repository import tree

Check = Callable[[Any], bool]
Fields = dict[str, tuple[str, bool]]
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.M)
_ENUM = re.compile(r"^\| (\w+) \| number \| meaning \|\n\|[-|]+\n((?:\| .+ \|\n)+)", re.M)
_NUMBER = re.compile(r"^\| \w+ \| (\d+) \|", re.M)
_OPEN = re.compile(r"treats a number it does not know, up to (\d+), as \"stopped")
_TEXT_BYTES = 2048
_MAP_ENTRIES = 1024


def _tables() -> dict[str, Fields]:
    """Every struct of the page: field to its type and whether it is required."""
    page = tree.text("docs/protocol.md")
    parts = re.split(r"^#{2,4} (.+)$", page, flags=re.M)
    found: dict[str, Fields] = {}
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        halves = re.split(r"^(?:Request|Reply) `(\w+)`", text, flags=re.M)
        names = [title, *halves[1::2]] if len(halves) > 1 else [title]
        for name, part in zip(names, halves[::2], strict=True):
            rows = {
                row[0]: (row[1].strip(), row[2].strip() == "required") for row in _ROW.findall(part)
            }
            if rows or "an empty map" in part:
                found.setdefault(name, rows)
    found["ErrorBody"] = found.pop("Errors")
    return found


def _enums() -> dict[str, frozenset[int]]:
    """Every enumeration of the page whose numbers a field may have, by name."""
    page = tree.text("docs/protocol.md")
    return {
        name: frozenset(int(number) for number in _NUMBER.findall(rows))
        for name, rows in _ENUM.findall(page)
    }


def _number(text: str) -> int:
    power = re.fullmatch(r"(\d+)\^(\d+)(-1)?", text)
    if power is None:
        return int(text)
    value: int = int(power[1]) ** int(power[2])
    return value - (1 if power[3] else 0)


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    return _number(low), _number(high or low)


class Spec:
    """The page's structs.

    Attributes:
        structs: name to a check of a plain map.
    """

    def __init__(self) -> None:
        self._tables = _tables()
        self._enums = _enums()
        self.structs: dict[str, Check] = {}
        for name, fields in self._tables.items():
            self.structs[name] = self._struct(name, fields)

    def _struct(self, name: str, fields: Fields) -> Check:
        checks = {field: self._type(text) for field, (text, _) in fields.items()}
        needed = {field for field, (_, is_needed) in fields.items() if is_needed}

        def check(value: Any) -> bool:
            if not isinstance(value, dict) or not needed <= value.keys():
                return False
            return all(
                (one == "type" and one not in checks) or (one in checks and checks[one](part))
                for one, part in value.items()
            )

        return check

    def _type(self, text: str) -> Check:
        """One entry of the column "type"."""
        if " or " in text and not text.startswith(("bytes", "map", "array")):
            choices = [self._type(one) for one in text.split(" or ")]
            return lambda value: any(choice(value) for choice in choices)
        word, _, rest = text.partition(" ")
        if word == "int":
            low, high = _span(rest) if rest else (-(1 << 63), (1 << 64) - 1)
            return lambda value: type(value) is int and low <= value <= high
        if word == "float":
            least, most = (float(one) for one in rest.lstrip(">").split(".."))
            is_open = rest.startswith(">")
            return lambda value: (
                type(value) in (int, float)
                and least <= value <= most
                and not (is_open and value == least)
            )
        if word in ("bytes", "text"):
            low, high = (0, 16) if rest == "0 or 16" else _span(rest)
            kind = bytes if word == "bytes" else str
            return lambda value: type(value) is kind and low <= len(value) <= high
        if word in ("array", "map"):
            return self._many(word, rest)
        if word == "bool":
            return lambda value: type(value) is bool
        if word == "nil":
            return lambda value: value is None
        if word == "StopReason":  # that of tomorrow too
            found = _OPEN.search(tree.text("docs/protocol.md"))
            assert found is not None
            most = int(found[1])
            return lambda value: type(value) is int and 0 <= value <= most
        if word in self._enums:
            return lambda value: type(value) is int and value in self._enums[word]
        return partial(self._named, word)

    def _named(self, word: str, value: Any) -> bool:
        return self.structs[word](value)

    def _many(self, word: str, rest: str) -> Check:
        span, _, inner = rest.partition(" of ")
        low, high = _span(span)
        if word == "array":
            item = self._type(inner)
            return lambda value: (
                type(value) is list and low <= len(value) <= high and all(map(item, value))
            )
        left, _, right = inner.partition(" to ")
        key, entry = self._type(left), self._type(right)
        return lambda value: (
            type(value) is dict
            and low <= len(value) <= high
            and all(key(one) for one in value)
            and all(entry(one) for one in value.values())
        )


def raw_fault(data: bytes, max_bytes: int = limits.MAX_FRAME_BYTES) -> str:
    """What the page forbids of a whole message, whatever it means; empty when nothing is wrong.

    Args:
        data: a message that was let through.
        max_bytes: longest of its kind.
    """
    if len(data) > max_bytes:
        return "longer than its kind may be"
    try:
        found = wire.tokens(data)
    except wire.BrokenError as error:
        return f"no MessagePack value: {error}"
    containers, keys = 0, set[tuple[int, bytes]]()
    for token in found:
        if token.kind in (wire.ARRAY, wire.MAP):
            containers += 1
            most = limits.MAX_REGIONS if token.kind == wire.ARRAY else _MAP_ENTRIES
            if token.entries > most:
                return "an array or map with too many entries"
        elif token.kind == wire.EXT:
            return "an extension type"
        elif token.kind == wire.TEXT and token.end - token.head > _TEXT_BYTES:
            return "a text with too many bytes"
        if token.is_key:
            if token.kind not in (wire.TEXT, wire.BLOB):
                return "a key that is no text"
            key = (token.parent, data[token.head : token.end])
            if key in keys:
                return "a map that names a key twice"
            keys.add(key)
    return "more containers than allowed" if containers > 4096 else ""


def fits(spec: Spec, name: str, value: Mapping[str, Any]) -> bool:
    """Whether a plain map is a struct of the page."""
    return spec.structs[name](value)

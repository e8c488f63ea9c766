"""Messages taken apart, changed and judged, each without the decoder under test."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from protocol.extents import HEADER_DTYPE, RECORD_DTYPE
from protocol.messages import Ping
from tests.fuzz import batches, decode, formats, samples, spec, wire
from tests.fuzz.finding import Finding
from tests.fuzz.mutate import Material, mutate


@pytest.mark.parametrize("template", samples.templates()[::25], ids=lambda one: one.target)
def test_every_drawn_message_is_valid(template: wire.Template) -> None:
    assert decode.try_one(template.target, template.data)


def kinds_of(value: Any) -> set[str]:
    """Names of the structs within a value, itself included."""
    if isinstance(value, dict):
        return set().union(*map(kinds_of, value.values()))
    if isinstance(value, tuple):
        return set().union(*map(kinds_of, value))
    if not isinstance(value, msgspec.Struct):
        return set()
    parts = (getattr(value, name) for name in value.__struct_fields__)
    return {type(value).__name__}.union(*map(kinds_of, parts))


def test_every_kind_of_message_is_drawn() -> None:
    names: set[str] = set()
    for template in samples.templates():
        value: Any = decode.DECODERS[template.target][0](template.data)
        inner = value[1] if template.target == "request" else getattr(value, "body", value)
        names |= kinds_of(inner)
    assert set(decode.PAGE.structs) - names <= {"ErrorBody"}


def test_tokens_name_each_value_once() -> None:
    data = wire.encode({"a": [1, b"xy", None], "b": {"c": 1.5}})
    found = wire.tokens(data)
    assert [data[one.start : one.end] for one in found if one.is_key] == [
        wire.encode(name) for name in ("a", "b", "c")
    ]
    assert found[0].end == len(data)
    assert sum(one.kind in (wire.ARRAY, wire.MAP) for one in found) == 3


@pytest.mark.parametrize("data", [b"", b"\x81", b"\xc1", b"\x00\x00", b"\xd9\x05abc", b"\x92\x01"])
def test_what_is_not_one_value_is_broken(data: bytes) -> None:
    with pytest.raises(wire.BrokenError):
        wire.tokens(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "twice"),
        (b"\xd4\x01\0", "extension"),
        (b"\xdd\0\0\x08\x01" + b"\xc0" * 2049, "too many entries"),
        (wire.encode([[[[]] * 2000]] * 3), "containers"),
        (wire.encode("x" * 2049), "text"),
        (b"\x91", "no MessagePack"),
        (b"\x81\x90\x01", "no text"),
    ],
)
def test_the_page_forbids(data: bytes, said: str) -> None:
    assert said in spec.raw_fault(data)


def test_the_page_allows_ranges_and_no_more() -> None:
    good = {"session": 1, "request": 0, "wait_ms": 60_000}
    check = decode.PAGE.structs["QueryPrefetchStatus"]
    assert check(good)
    for bad in ({"wait_ms": 60_001}, {"session": 0}, {"session": True}, {"more": 1}):
        assert not check({**good, **bad})
    assert not check({"session": 1})


def test_a_decoder_that_lets_too_much_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = wire.encode([6, 1, b"", b"", 0, {"field": 1}])
    assert not decode.try_one("request", unknown)
    careless = {"request": (lambda data: (None, Ping()), ValueError)}
    monkeypatch.setattr(decode, "DECODERS", careless)
    with pytest.raises(Finding, match="outside its range: Ping"):
        decode.try_one("request", unknown)


def test_mutations_repeat_from_their_seed_and_mostly_change_something() -> None:
    stock = Material.of(samples.templates(), samples.bounds())
    template = samples.templates()[0]
    first = [mutate(random.Random(n).random, template, stock) for n in range(200)]
    assert first == [mutate(random.Random(n).random, template, stock) for n in range(200)]
    assert sum(data != template.data for data in first) > 150


@pytest.mark.parametrize(("name", "kind"), formats.FORMATS)
def test_formats_hold_for_drawn_inputs(name: str, kind: formats.Format) -> None:
    draw = random.Random(name)
    for _ in range(300):
        kind.check(kind.draw(draw))


def test_the_plain_checksum_is_the_pages() -> None:
    assert RECORD_DTYPE.itemsize == HEADER_DTYPE.itemsize == 128
    assert formats.plain_checksum(bytes(128)) & 1


def test_an_input_is_made_smaller_while_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(target: str, data: bytes) -> None:
        if b"\x07" in data:
            raise Finding("kind: x")

    monkeypatch.setattr(batches, "run_input", fails)
    assert batches.shrink("request", bytes(range(200)), "kind") == b"\x07"

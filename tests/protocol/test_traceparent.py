"""Ids, the line that ties two processes' spans, and the share of traces that is taken."""

from __future__ import annotations

import random

import pytest

from protocol.limits import MAX_TRACEPARENT_CHARS
from protocol.traceparent import SpanRef, bound_of, endpoint, is_taken, parse, parse_ratio

EXAMPLE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # of W3C Trace Context


def test_the_standards_example_is_read_and_written() -> None:
    ref = parse(EXAMPLE)
    assert ref == SpanRef(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    assert str(ref) == EXAMPLE
    assert len(EXAMPLE) == MAX_TRACEPARENT_CHARS
    assert parse(EXAMPLE[:-2] + "00") == SpanRef(ref.trace_id, ref.span_id, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        EXAMPLE[:-1],
        EXAMPLE + "0",
        EXAMPLE.upper(),
        "01" + EXAMPLE[2:],
        EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        EXAMPLE.replace("00f067aa0ba902b7", "0" * 16),
        EXAMPLE + "\n",
        "é" * 55,
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert parse(text) is None


def test_about_so_many_are_taken_and_everywhere_the_same() -> None:
    rng = random.Random(1)
    ids = [rng.getrandbits(128) for _ in range(4000)]
    taken = {ratio: {i for i in ids if is_taken(i, bound_of(ratio))} for ratio in (0.1, 0.5)}
    assert 300 < len(taken[0.1]) < 500
    assert taken[0.1] < taken[0.5]
    assert all(is_taken(i, bound_of(1.0)) for i in [*ids, (1 << 128) - 1])
    assert not any(is_taken(i, bound_of(0.0)) for i in [*ids, 1 << 127])


@pytest.mark.parametrize(("text", "ratio"), [("", 0), (" ", 0), ("1", 1), (" 0.25 ", 0.25)])
def test_ratios(text: str, ratio: float) -> None:
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "all", "1e3"])
def test_what_is_no_ratio(text: str) -> None:
    with pytest.raises(ValueError):
        parse_ratio(text)


def test_the_nearer_endpoint_holds() -> None:
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "b"}
    assert endpoint(both) == "b"
    assert endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": "a"}) == "a"
    assert endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}) == ""

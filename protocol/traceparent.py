"""Which requests are traced, and the line that ties the spans of two processes together.

Purpose: trace and span ids, W3C's traceparent of version 00, and a ratio by which every process
takes or leaves the same traces (OpenTelemetry's TraceIdRatioBased). Must not know: spans,
exporters, what a request is. Runs in: whichever thread asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ENV_RATIO: Final = "KVKEEP_TRACES"
ENV_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Where spans go, as for every program that speaks OTLP; the first holds over the second."""

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LOW: Final = (1 << 64) - 1
_SAMPLED: Final = 1


@dataclass(frozen=True)
class SpanRef:
    """A span of some process.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        is_sampled: whether that process records it.
    """

    trace_id: int
    span_id: int
    is_sampled: bool = True

    def __str__(self) -> str:
        """As traceparent."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse(text: str) -> SpanRef | None:
    """Reads a traceparent.

    Args:
        text: from a peer.

    Returns:
        The span; None for anything but a valid one of version 00.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return SpanRef(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


def bound_of(ratio: float) -> int:
    """What the lower half of a trace id is below, in so many of all traces.

    Args:
        ratio: 0 to 1.
    """
    return round(ratio * (_LOW + 1))


def is_taken(trace_id: int, bound: int) -> bool:
    """Whether a trace is one of those that are recorded.

    Args:
        trace_id: its id.
        bound: of ``bound_of``.
    """
    return trace_id & _LOW < bound


def parse_ratio(text: str) -> float:
    """Reads a ratio.

    Args:
        text: a number from 0 to 1; empty for 0.

    Returns:
        The ratio.

    Raises:
        ValueError: it is none.
    """
    ratio = float(text) if text.strip() else 0.0
    if not 0.0 <= ratio <= 1.0:  # nan, too
        raise ValueError(f"{text} is not within 0 and 1")
    return ratio


def endpoint(environ: Mapping[str, str]) -> str:
    """Where an environment says that spans go; empty for nowhere."""
    return next((environ[name] for name in ENV_ENDPOINTS if environ.get(name, "").strip()), "")

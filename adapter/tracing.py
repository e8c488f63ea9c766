"""Traces of requests: which are traced, their open spans, and what becomes of those that end.

One root span for each traced request, ``kvkeep.request``, from its first query to its end; below it
spans of what was asked of the server and copied. Without traces there is no tracer, and nobody pays
for more than to see that. A span that ends is left to the exporter's thread; no hook waits for it.
Attributes are numbers, outcomes and fingerprints: no token, no key, no salt.

Must not know: the host's classes, messages, how spans are sent. Any thread may call it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Final

from adapter.journal import Journal
from protocol import __version__, traceparent
from protocol.traceparent import SpanRef, bound_of, is_taken
from protocol.tracing.export import Exporter, Sink, Span, TracingError, Value

SERVICE: Final = "kvkeep-adapter"

MAX_TRACES: Final = 1024
"""Traced requests that are remembered: those that run, and the latest of those that ended, whose
saves may go on. Over that the oldest is ended."""

MAX_SPANS: Final = 64
"""Spans below one request; a request that is queried for ever makes no more than these."""

_CLOSE_S: Final = 0.5


@dataclass(slots=True, eq=False)
class Trace:
    """One traced request.

    Attributes:
        root: its root span.
        begin_ns: of the root, nanoseconds since 1970.
        facts: of the root.
        num_spans: begun below it.
        is_over: whether the root ended.
    """

    root: SpanRef
    begin_ns: int
    facts: dict[str, Value]
    num_spans: int = 0
    is_over: bool = False


class OpenSpan:
    """A span that has begun. Ends once: by ``end``, or by the ``with`` around it."""

    def __init__(self, tracer: Tracer | None, trace: Trace | None, name: str, span_id: int) -> None:
        """Begins now.

        Args:
            tracer: takes it when it is over; None for a span that nobody wants.
            trace: the request's.
            name: of what is done.
            span_id: of this one.
        """
        self._tracer = tracer
        self._trace = trace
        self._name = name
        self._span_id = span_id
        self._begin_ns = time.time_ns() if tracer is not None else 0
        self._facts: dict[str, Value] = {}

    def told(self, is_known: bool) -> str:
        """What a message names as the span that asks.

        Args:
            is_known: whether the server can ``traces``.

        Returns:
            Its traceparent; empty for a server that cannot, and for a span that nobody wants.
        """
        trace = self._trace
        if trace is None or not is_known:
            return ""
        return str(SpanRef(trace.root.trace_id, self._span_id))

    def learn(self, **facts: Value) -> None:
        """Adds attributes."""
        if self._tracer is not None:
            self._facts.update(facts)

    def end(self, failed: str = "", **facts: Value) -> None:
        """It is over. Idempotent.

        Args:
            failed: why it failed; empty where it did not.
            facts: further attributes.
        """
        tracer, trace = self._tracer, self._trace
        if tracer is None or trace is None:
            return
        self._tracer = None
        ref = SpanRef(trace.root.trace_id, self._span_id)
        tracer.put(
            Span(
                self._name,
                ref,
                trace.root.span_id,
                self._begin_ns,
                time.time_ns(),
                "CLIENT",
                _named({**self._facts, **facts}),
                failed,
            )
        )

    def __enter__(self) -> OpenSpan:
        """Begins nothing: it has begun."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """It is over, with what broke it if anything did."""
        if self._tracer is not None:
            self.end(f"{kind.__name__}: {error}" if kind is not None else "")


NO_SPAN: Final = OpenSpan(None, None, "", 0)
"""Stands in for the spans of what is not traced."""


@dataclass
class Tracer:
    """All traced requests of one engine's leader.

    Args:
        sink: takes spans that are over.
        ratio: share of requests that is traced.
        engine: its instance, in hexadecimal digits; empty for none.
    """

    sink: Sink
    ratio: float
    engine: str = ""
    _seed: bytes = field(default_factory=lambda: os.urandom(16))
    _traces: OrderedDict[int, Trace] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: random.Random = field(default_factory=lambda: random.Random(os.urandom(16)))

    def begin(self, key: int, request_id: int, prompt_tokens: int) -> None:
        """A request is asked about; again and again, it is the same trace.

        Args:
            key: our number of it.
            request_id: the host's.
            prompt_tokens: length of its prompt.
        """
        digest = blake2b(key.to_bytes(8, "little"), key=self._seed, digest_size=16).digest()
        trace_id = int.from_bytes(digest, "big") or 1
        if not is_taken(trace_id, bound_of(self.ratio)):
            return
        with self._lock:
            if key in self._traces:
                return
            facts: dict[str, Value] = {
                "request_id": request_id,
                "request_key": key,
                "prompt_tokens": prompt_tokens,
            }
            if self.engine:
                facts["engine"] = self.engine
            root = SpanRef(trace_id, self._ids.getrandbits(64) or 1)
            self._traces[key] = Trace(root, time.time_ns(), facts)
            oldest = None
            if len(self._traces) > MAX_TRACES:
                _, oldest = self._traces.popitem(last=False)
        if oldest is not None:
            self._end(oldest, "forgotten")

    def open(self, key: int, name: str) -> OpenSpan:
        """Begins a span below a request.

        Args:
            key: our number of the request.
            name: of what is done.

        Returns:
            The span; ``NO_SPAN`` where the request is not traced.
        """
        trace = self._traces.get(key)
        if trace is None or trace.num_spans >= MAX_SPANS:
            return NO_SPAN
        trace.num_spans += 1
        return OpenSpan(self, trace, name, self._ids.getrandbits(64) or 1)

    def learn(self, key: int, **facts: Value) -> None:
        """Adds attributes to a request's root.

        Args:
            key: our number of the request.
            facts: later ones of a name take the place of earlier ones.
        """
        trace = self._traces.get(key)
        if trace is not None and not trace.is_over:
            trace.facts.update(facts)

    def add(self, key: int, name: str, amount: int) -> None:
        """Adds to an attribute of a request's root.

        Args:
            key: our number of the request.
            name: of a count.
            amount: how many more.
        """
        trace = self._traces.get(key)
        if trace is not None and not trace.is_over:
            before = trace.facts.get(name, 0)
            trace.facts[name] = amount + (before if isinstance(before, int) else 0)

    def finish(self, key: int) -> None:
        """A request is over; its saves may go on.

        Args:
            key: our number of it.
        """
        trace = self._traces.get(key)
        if trace is not None and not trace.is_over:
            self._end(trace, _outcome(trace.facts))

    def put(self, span: Span) -> None:
        """Takes a span that is over."""
        self.sink.put(span)

    def figures(self) -> dict[str, int]:
        """Counters of the spans that are over, by name."""
        return self.sink.figures()

    def _end(self, trace: Trace, outcome: str) -> None:
        if trace.is_over:
            return
        trace.is_over = True
        trace.facts["outcome"] = outcome
        now_ns = time.time_ns()
        facts = _named(dict(trace.facts))  # at once: the saver's thread may add to them meanwhile
        self.sink.put(
            Span("kvkeep.request", trace.root, 0, trace.begin_ns, now_ns, attributes=facts)
        )


def _outcome(facts: Mapping[str, Value]) -> str:
    for name, outcome in (("chunks_loaded", "loaded"), ("chunks_hit", "hit")):
        if facts.get(name):
            return outcome
    return "miss" if "chunks_requested" in facts else "not_asked"


def _named(facts: Mapping[str, Value]) -> dict[str, Value]:
    return {f"kvkeep.{name}": value for name, value in facts.items()}


def start(
    ratio: float, environ: Mapping[str, str], journal: Journal, engine: str = ""
) -> tuple[Tracer, Callable[[], object]] | None:
    """The tracer of an engine, if traces are wanted and can be sent.

    Args:
        ratio: share of requests that is traced; 0 for none.
        environ: environment variables.
        journal: told what is missing, once, and what is lost, at most once a minute.
        engine: its instance, in hexadecimal digits.

    Returns:
        The tracer, and what ends it within half a second; None for no traces.
    """
    if not ratio:
        return None
    if not traceparent.endpoint(environ):
        names = " nor ".join(traceparent.ENV_ENDPOINTS)
        journal.report("traces_off", f"kvkeep: no traces: neither {names} is set")
        return None
    try:
        exporter = Exporter(SERVICE, __version__, partial(_complain, journal))
    except TracingError as error:
        journal.report("traces_off", f"kvkeep: {error}")
        return None
    return Tracer(exporter, ratio, engine), lambda: exporter.close(_CLOSE_S)


def _complain(journal: Journal, text: str) -> None:
    journal.report("traces_lost", f"kvkeep: spans do not arrive: {text}")

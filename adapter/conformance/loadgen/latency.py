"""Round trips: PING and LOOKUP beside bare echoes, cold lookups beside hashing alone.

Purpose: time single calls through the adapter's channel, taking turns with the echo of as many
bytes. Must not know: targets, other processes. Runs in: the load generator's main thread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.conformance.loadgen import hashing
from adapter.conformance.loadgen.echo import EchoClient, frame_for
from adapter.conformance.loadgen.engine import (
    TOKENS_PER_BLOCK,
    VOCABULARY,
    Engine,
    LoadgenError,
    Prompt,
    hash_tokens,
)
from adapter.conformance.loadgen.orders import Lookup as LookupOrder
from adapter.conformance.loadgen.orders import Ping as PingOrder
from adapter.conformance.loadgen.transfers import store_s, wait_mapped
from protocol import frames
from protocol.ids import ID_BYTES
from protocol.keys import ReuseScope
from protocol.messages import Body, Done, Lookup, LookupReply, Ping, Request

_REQUEST = 1 << 40
"""Request key of the timed lookups; prompts are numbered from 1."""

_WARM_CALLS = 20

Progress = Callable[[int, int], None]


def run_ping(engine: Engine, order: PingOrder, progress: Progress) -> dict[str, Any]:
    """Carries out a ``Ping`` order.

    Args:
        engine: registered.
        order: how many.
        progress: told now and then.

    Returns:
        ``ping_ms`` and ``echo_ms``, one per call.

    Raises:
        LoadgenError: no reply.
    """
    frame = frame_for(*frame_bytes(Ping(), Done()))
    echo = EchoClient(order.echo)
    ping = Ping()
    times: dict[str, list[float]] = {"ping_ms": [], "echo_ms": []}
    try:
        for number in range(-_WARM_CALLS, order.calls):
            ping_ms = _ms(lambda: engine.ask(ping))
            echo_ms = _ms(lambda: echo.call(frame))
            if number >= 0:
                times["ping_ms"].append(ping_ms)
                times["echo_ms"].append(echo_ms)
                progress(number + 1, order.calls)
    finally:
        echo.close()
    return times


def run_lookup(engine: Engine, order: LookupOrder, progress: Progress) -> dict[str, Any]:
    """Carries out a ``Lookup`` order.

    Args:
        engine: registered, with as many pages as the prompt has blocks.
        order: how many of what.
        progress: told now and then.

    Returns:
        ``lookup_ms``, ``lookup_echo_ms``, ``lookup_cold_ms`` and ``hashing_ms``, one per call;
        ``request_bytes`` and ``reply_bytes`` of a lookup.

    Raises:
        LoadgenError: no reply, or one that lacks blocks.
    """
    random = np.random.default_rng(order.seed)
    tokens = random.integers(0, VOCABULARY, order.num_blocks * TOKENS_PER_BLOCK, dtype=np.int32)
    keys = hash_tokens(tokens)
    prompt = Prompt(1, keys, np.arange(order.num_blocks, dtype=np.int32))
    store_s(engine, [prompt])
    wait_mapped(engine, [prompt])
    of = order.calls + order.cold_calls
    asked = _lookup(engine, keys)
    sizes = frame_bytes(asked, LookupReply(lease=bytes(ID_BYTES), ready=order.num_blocks))
    echo = EchoClient(order.echo)
    try:
        hot = _hot(engine, asked, echo, frame_for(*sizes), order.calls, lambda n: progress(n, of))
    finally:
        echo.close()
    cold = _cold(engine, tokens, order.cold_calls, lambda n: progress(order.calls + n, of))
    return {**hot, **cold, "request_bytes": sizes[0], "reply_bytes": sizes[1]}


def _hot(
    engine: Engine,
    asked: Lookup,
    echo: EchoClient,
    frame: bytes,
    calls: int,
    progress: Callable[[int], None],
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"lookup_ms": [], "lookup_echo_ms": []}
    for number in range(-_WARM_CALLS, calls):
        began = time.perf_counter()
        found = engine.ask(asked)
        lookup_ms = (time.perf_counter() - began) * 1e3
        _check(found, asked)
        echo_ms = _ms(lambda: echo.call(frame))
        if number >= 0:
            times["lookup_ms"].append(lookup_ms)
            times["lookup_echo_ms"].append(echo_ms)
            progress(number + 1)
    return times


def _cold(
    engine: Engine, tokens: NDArray[np.int32], calls: int, progress: Callable[[int], None]
) -> dict[str, list[float]]:
    seed = ReuseScope().seed()

    def lookup(fresh: list[int]) -> None:
        asked = _lookup(engine, hash_tokens(fresh))
        _check(engine.ask(asked), asked)

    def hash_alone(fresh: list[int]) -> None:
        hashing.keys_of(fresh, TOKENS_PER_BLOCK, seed)

    methods = {"lookup_cold_ms": lookup, "hashing_ms": hash_alone}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(-1, calls):
        for name in sorted(methods, reverse=bool(number % 2)):
            fresh: list[int] = tokens.tolist()  # new int objects, never looked at
            with _quiet_collector():
                took = _ms(partial(methods[name], fresh))
            if number >= 0:
                times[name].append(took)
        progress(max(0, number + 1))
    return times


def _lookup(engine: Engine, keys: bytes) -> Lookup:
    return Lookup(session=engine.joined.session, request=_REQUEST, start=0, keys=keys)


def _check(found: Body, asked: Lookup) -> None:
    wanted = len(asked.keys) // ID_BYTES
    if not isinstance(found, LookupReply) or found.ready != wanted:
        raise LoadgenError(f"LOOKUP of {wanted} stored blocks was answered {found}")


def _ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keeps the cyclic collector out of single samples of several ms."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def frame_bytes(request: Request, reply: Body) -> tuple[int, int]:
    """Lengths of a request's and its reply's frames.

    Args:
        request: as sent.
        reply: as received.

    Returns:
        Both in bytes, the request at least as long as the reply, so that an echo can stand in.
    """
    some_id = bytes(ID_BYTES)
    sent = frames.pack_request(request, 1 << 16, some_id, some_id, 1 << 62)
    got = frames.pack_reply(int(request.op), 1 << 16, reply)
    return max(len(sent), len(got)), len(got)

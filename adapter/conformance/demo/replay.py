"""A trace through an engine and its connector, one request after the other.

Between requests everything settles: saves have ended, what the server gave is mapped,
the engine's own reuse is empty. So each hit comes from the server and none is lost to
timing. The payload model
compares each page that counts as computed with the bytes its tokens stand for.

Must not know: servers, what hits are expected. Runs on the main thread of an
engine's process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from adapter.conformance.demo.trace import BLOCK_TOKENS, read_trace
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.payload import PayloadModel

_REQUEST_S: Final = 60.0
_REPORT_EVERY: Final = 10


def replay(
    engine: HostEngine,
    payload: PayloadModel,
    num_requests: int,
    *,
    settle: Callable[[], object],
    report: Callable[[int], None],
) -> dict[str, Any]:
    """Send the first requests of the trace, each generating one token.

    Args:
        engine: Engine with ``payload`` as its model.
        payload: Verifies pages before a request's first forward.
        num_requests: How many requests.
        settle: Called after each request.
        report: Told the number of requests done, now and then.

    Returns:
        Counts of blocks: ``hit_blocks`` (loaded from the server), ``full_blocks`` (of
        all prompts), ``device_blocks`` (matched by the engine itself),
        ``verified_blocks`` (compared bit for bit); and ``hits``, blocks loaded per request.
    """
    requests = read_trace(num_requests)
    verified_before = payload.num_verified_pages
    num_device_tokens = 0
    hits = []
    for number, request in enumerate(requests, 1):
        result = engine.submit(request.tokens(), 1).result(_REQUEST_S)
        hits.append(result.num_loaded_tokens // BLOCK_TOKENS)
        num_device_tokens += result.num_device_tokens
        settle()
        if number % _REPORT_EVERY == 0:
            report(number)
    return {
        "hit_blocks": sum(hits),
        "full_blocks": sum(request.num_tokens // BLOCK_TOKENS for request in requests),
        "device_blocks": num_device_tokens // BLOCK_TOKENS,
        "verified_blocks": payload.num_verified_pages - verified_before,
        "hits": hits,
    }

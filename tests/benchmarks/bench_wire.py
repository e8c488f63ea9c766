"""What the wire costs in CPU: decoding, answering and hashing, best of many rounds.

    python -m tests.benchmarks.bench_wire

A program, not a test: it judges nothing, since a busy machine would decide. Knows ``protocol`` only
and needs no server. Prints one line per case with the best and the median time in microseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from protocol import frames, messages
from protocol.keys import BlockHashChain, ReuseScope

NUM_ROUNDS = 25
ROUND_S = 0.02
ID = bytes(16)
NUM_CHUNKS = 4096
TOKENS_PER_BLOCK = 32


def lookup_frame(num_chunks: int) -> bytes:
    """A LOOKUP of so many keys."""
    keys = bytes(range(256)) * (num_chunks // 16)
    body = messages.Lookup(session=1, request=2, start=0, keys=keys)
    return frames.pack_request(body, 3, ID, ID, 4)


def cases() -> dict[str, Callable[[], object]]:
    """Name to what is timed."""
    ping = frames.pack_request(messages.Ping(), 1, ID, ID, 2)
    lookup = lookup_frame(NUM_CHUNKS)
    store = frames.pack_request(
        messages.Store(
            session=1,
            store=2,
            request=3,
            shard=0,
            start=0,
            parent=b"",
            keys=bytes(16 * 32),
            pages=bytes(4 * 32),
        ),
        1,
        ID,
        ID,
        2,
    )
    answer = messages.LookupReply(lease=ID, ready=NUM_CHUNKS)
    retrieved = messages.RetrieveReply(slots=bytes(16 * NUM_CHUNKS), num_shards=1)
    reply = frames.pack_reply(int(messages.Op.RETRIEVE), 1, retrieved)
    tokens = list(range(NUM_CHUNKS * TOKENS_PER_BLOCK))

    def hashed() -> int:
        return BlockHashChain.start(ReuseScope(), TOKENS_PER_BLOCK).extend(tokens)

    return {
        "decode PING": lambda: frames.request_body(frames.unpack_request(ping)),
        "decode LOOKUP of 4096 keys": lambda: frames.request_body(frames.unpack_request(lookup)),
        "decode STORE of 32 pages": lambda: frames.request_body(frames.unpack_request(store)),
        "encode LOOKUP reply": lambda: frames.pack_reply(10, 1, answer),
        "decode RETRIEVE reply of 4096 slots": lambda: frames.unpack_reply(reply),
        "hash 4096 blocks from a list": hashed,
    }


def timed_us(action: Callable[[], object]) -> list[float]:
    """Microseconds per call, one figure per round."""
    action()
    started = time.perf_counter()
    action()
    num_calls = max(1, int(ROUND_S / max(time.perf_counter() - started, 1e-7)))
    figures = []
    for _ in range(NUM_ROUNDS):
        started = time.perf_counter()
        for _ in range(num_calls):
            action()
        figures.append((time.perf_counter() - started) / num_calls * 1e6)
    return figures


def main() -> None:
    """Times every case."""
    print(f"{'':38}{'best µs':>10}{'median µs':>12}")
    for name, action in cases().items():
        figures = timed_us(action)
        print(f"{name:38}{min(figures):10.2f}{statistics.median(figures):12.2f}")


if __name__ == "__main__":
    main()

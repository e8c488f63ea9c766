"""Orders that the load generator takes, one JSON line each.

Purpose: typed and strict, so that a slip in the benchmark is an answer and not a wrong figure. Must
not know: how an order is carried out. Runs in: the load generator's main thread.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Many = Annotated[int, Meta(ge=1, le=1 << 20)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Order(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="order"
):
    """Base of all orders."""


class Probe(Order, frozen=True, kw_only=True, tag="probe"):
    """Tries a server that is just being started until it answers a PING.

    Attributes:
        url: its endpoint.
        timeout_s: when to give up.
    """

    url: str
    timeout_s: Seconds


class Join(Order, frozen=True, kw_only=True, tag="join"):
    """Registers a pool of this process with a server.

    Attributes:
        url: its endpoint.
        model_id: names the namespace.
        page_bytes: bytes per page.
        num_pages: pages in the pool.
        scratch_dir: folder on the arena's mount for the plain copies; none are made without it.
        timeout_s: when to give up.
    """

    url: str
    model_id: str
    page_bytes: Bytes
    num_pages: Many
    scratch_dir: str = ""
    timeout_s: Seconds


class Ping(Order, frozen=True, kw_only=True, tag="ping"):
    """Times PING and a bare echo in turn.

    Attributes:
        echo: endpoint of the echo.
        calls: of each.
    """

    echo: str
    calls: Many


class Lookup(Order, frozen=True, kw_only=True, tag="lookup"):
    """Times LOOKUP of blocks that this order stores first, and an echo of as many bytes.

    Attributes:
        echo: endpoint of the echo.
        num_blocks: blocks of the prompt.
        calls: lookups with hashes ready.
        cold_calls: lookups from lists never hashed before.
        seed: of the tokens.
    """

    echo: str
    num_blocks: Many
    calls: Many
    cold_calls: Many
    seed: int


class Fill(Order, frozen=True, kw_only=True, tag="fill"):
    """Stores into a new arena until it is full, reads it all back, and forgets it again.

    Attributes:
        num_requests: requests to store.
        pages_per_request: pages of each.
        scratch_dir: folder on the arena's mount for the plain copies.
        pid: the server's main process, whose first thread is its loop.
        seed: of the tokens.
    """

    num_requests: Many
    pages_per_request: Many
    scratch_dir: str
    pid: Many
    seed: int


class Rounds(Order, frozen=True, kw_only=True, tag="rounds"):
    """Times stores, retrieves and plain copies of the same pages, round by round.

    Attributes:
        rounds: how many.
        num_requests: requests in a round.
        pages_per_request: pages of each.
        pid: the server's main process, whose first thread is its loop.
        seed: of tokens and orders.
    """

    rounds: Many
    num_requests: Many
    pages_per_request: Many
    pid: Many
    seed: int


class Flood(Order, frozen=True, kw_only=True, tag="flood"):
    """Keeps the server's loop busy with control traffic until the next line on stdin.

    Attributes:
        pid: the server's main process, whose first thread is its loop.
        share: of one CPU that the loop's thread shall use.
        seed: of the keys looked up.
    """

    pid: Many
    share: Share
    seed: int


class Leave(Order, frozen=True, kw_only=True, tag="leave"):
    """Ends the registration and the link."""


AnyOrder = Probe | Join | Ping | Lookup | Fill | Rounds | Flood | Leave


def read(line: bytes) -> AnyOrder:
    """Reads one order.

    Args:
        line: JSON.

    Returns:
        The order.

    Raises:
        ValueError: it is none; names the field.
    """
    try:
        order: AnyOrder = msgspec.json.decode(line, type=AnyOrder)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an order: {error}") from error
    return order


def progress(done: int, of: int) -> bytes:
    """A line that says how far an order is."""
    return msgspec.json.encode({"event": "progress", "done": done, "of": of})


def done(result: dict[str, Any]) -> bytes:
    """The line that ends an order well."""
    return msgspec.json.encode({"event": "done", "result": result})


def failed(reason: str) -> bytes:
    """The line that ends an order badly."""
    return msgspec.json.encode({"event": "failed", "reason": reason})

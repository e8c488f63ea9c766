"""The part of an engine that the load generator needs: a pool, a registration, requests to store.

Purpose: register a shared pool as a real worker would and describe requests over its pages, each
with keys hashed from tokens. Must not know: what is timed. Runs in: the load generator's main
thread; the link's own threads work behind it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapter.channel import Channel
from adapter.conformance.loadgen import memcpy
from adapter.conformance.loadgen.orders import Join
from adapter.link import Joined, Link, LinkConfig
from adapter.pages import SharedPool
from protocol.errors import KvkeepError
from protocol.ids import ID_BYTES, InstanceId
from protocol.keys import BlockHashChain, ReuseScope
from protocol.layout import Region, ShardPool
from protocol.messages import Body, Clear, Request
from protocol.namespace import LayerGroup, Namespace

TOKENS_PER_BLOCK = 32
VOCABULARY = 128_000
CALL_S = 10.0
"""Longest wait for one reply; a benchmark would rather fail late than measure a time-out."""


class LoadgenError(Exception):
    """The order could not be carried out; one line says why."""


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        number: request key and store id.
        keys: 16 bytes per block.
        pages: int32[num_blocks], where its blocks lie in the pool.
    """

    number: int
    keys: bytes
    pages: NDArray[np.int32]

    @property
    def num_blocks(self) -> int:
        """Blocks, each one page."""
        return len(self.keys) // ID_BYTES


@dataclass
class Engine:
    """A registered pool.

    Attributes:
        link: to the server.
        joined: the registration.
        channel: of the main thread.
        pool: its memory.
        page_bytes: bytes per page.
        num_pages: pages in the pool.
        scratch: uint8[pool bytes] on the arena's mount for plain copies, or empty.
    """

    link: Link
    joined: Joined
    channel: Channel
    pool: SharedPool
    page_bytes: int
    num_pages: int
    scratch: NDArray[np.uint8]
    _next_number: int = field(default=1)

    @classmethod
    def join(cls, order: Join) -> Engine:
        """Makes a pool and registers it.

        Args:
            order: sizes and endpoint.

        Returns:
            The registered engine.

        Raises:
            LoadgenError: the server refused or did not answer in time.
            OSError: no memory.
        """
        num_bytes = order.page_bytes * order.num_pages
        pool = SharedPool.create(num_bytes, populate=True)
        scratch = np.empty(0, dtype=np.uint8)
        if order.scratch_dir:
            scratch = memcpy.scratch_file(Path(order.scratch_dir), num_bytes)
        config = LinkConfig(
            url=order.url,
            instance=InstanceId(secrets.token_bytes(ID_BYTES)),
            client=f"kvkeep bench, process {os.getpid()}",
            call_budget_s=CALL_S,
        )
        link = Link(config)
        link.start()
        region = Region(offset_bytes=0, size_bytes=order.page_bytes, stride_bytes=order.page_bytes)
        shard = ShardPool(shard=0, num_pages=order.num_pages, regions=(region,))
        link.register(_namespace(order), 0, pool.fd, num_bytes, (shard,))
        joined = link.wait_joined(order.timeout_s)
        if joined is None:
            why = link.refusal or f"not registered within {order.timeout_s:g} s"
            link.close(CALL_S)
            raise LoadgenError(f"{order.url}: {why}")
        return cls(
            link, joined, link.open_channel(), pool, order.page_bytes, order.num_pages, scratch
        )

    def ask(self, body: Request, channel: Channel | None = None) -> Body:
        """Asks the server and waits.

        Args:
            body: the request.
            channel: of the calling thread; the main thread's by default.

        Returns:
            The reply.

        Raises:
            LoadgenError: refused or not answered.
        """
        try:
            return (channel or self.channel).call(body, CALL_S)
        except KvkeepError as error:
            raise LoadgenError(f"{body.op.name}: {error}") from error

    def prompts(
        self, num_requests: int, num_blocks: int, random: np.random.Generator
    ) -> list[Prompt]:
        """Requests over random pages, none of which two of them share while pages last.

        Args:
            num_requests: how many.
            num_blocks: blocks of each.
            random: source of tokens and page orders.

        Returns:
            Requests that the server has never seen.
        """
        found = []
        order = np.empty(0, dtype=np.int32)
        for _ in range(num_requests):
            while order.size < num_blocks:
                more = random.permutation(self.num_pages).astype(np.int32)
                order = np.concatenate((order, more))
            found.append(self._prompt(order[:num_blocks], random))
            order = order[num_blocks:]
        return found

    def _prompt(self, pages: NDArray[np.int32], random: np.random.Generator) -> Prompt:
        tokens = random.integers(0, VOCABULARY, pages.size * TOKENS_PER_BLOCK, dtype=np.int32)
        number = self._next_number
        self._next_number += 1
        return Prompt(number, hash_tokens(tokens), pages)

    def clear(self) -> None:
        """Has the server forget what this namespace holds, so that its slots are free again.

        Raises:
            LoadgenError: it would not.
        """
        self.ask(Clear(fingerprint=self.joined.fingerprint))

    def leave(self) -> None:
        """Unregisters.

        Raises:
            LoadgenError: the server did not acknowledge.
        """
        self.channel.close()
        self.scratch = np.empty(0, dtype=np.uint8)
        if not self.link.close(CALL_S):
            raise LoadgenError("the server did not acknowledge the end of the registration")


def hash_tokens(tokens: Sequence[int] | NDArray[np.int32]) -> bytes:
    """Keys of a prompt.

    Args:
        tokens: a list or int32 array, whole blocks.

    Returns:
        16 bytes per block.
    """
    chain = BlockHashChain.start(ReuseScope(), TOKENS_PER_BLOCK)
    chain.extend(tokens)  # type: ignore[arg-type]
    return bytes(chain.keys)


def _namespace(order: Join) -> Namespace:
    return Namespace(
        model_id=order.model_id,
        config_digest=b"",
        weights_digest=b"",
        host_version="bench",
        kv_dtype="uint8",
        attention_backend="bench",
        kv_layout="bench",
        tokens_per_block=TOKENS_PER_BLOCK,
        groups=(LayerGroup(layers=(0,), page_bytes=order.page_bytes),),
    )

"""Links for tests: opened, registered with a pool of pages, closed whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from adapter.link import Link, LinkConfig
from adapter.pages import SharedPool
from protocol.ids import InstanceId
from protocol.layout import Region, ShardPool
from protocol.namespace import Namespace
from tests.adapter.responder import PAGE_BYTES, namespace


def shard_pool(num_pages: int, page_bytes: int = PAGE_BYTES) -> ShardPool:
    region = Region(offset_bytes=0, size_bytes=page_bytes, stride_bytes=page_bytes)
    return ShardPool(shard=0, num_pages=num_pages, regions=(region,))


def register(link: Link, pool: SharedPool, owner: Namespace | None = None) -> None:
    owner = owner or namespace()
    page_bytes = owner.groups[0].page_bytes
    pages = shard_pool(pool.num_bytes // page_bytes, page_bytes)
    link.register(owner, 0, pool.fd, pool.num_bytes, (pages,))


def make_pool(num_pages: int = 16, page_bytes: int = PAGE_BYTES, seed: int = 0) -> SharedPool:
    """A pool of random bytes."""
    pool = SharedPool.create(num_pages * page_bytes)
    pool.view[:] = np.random.default_rng(seed).integers(0, 256, pool.num_bytes, dtype=np.uint8)
    return pool


@contextmanager
def open_link(url: str, **config: Any) -> Iterator[Link]:
    """A started link of an instance of its own."""
    link = Link(LinkConfig(url, InstanceId(os.urandom(16)), "test", **config))
    link.start()
    try:
        yield link
    finally:
        link.close(5)


@contextmanager
def joined_link(url: str, owner: Namespace | None = None, **config: Any) -> Iterator[Link]:
    """A link that is registered with a pool of 16 pages."""
    pool = make_pool(page_bytes=(owner or namespace()).groups[0].page_bytes)
    with open_link(url, **config) as link:
        register(link, pool, owner)
        assert link.wait_joined(10) is not None, link.refusal
        yield link

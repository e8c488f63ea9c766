"""Answers of a server as tests make them up, out of the protocol's rows."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.messages import StatusReply
from protocol.prefixes import PrefixStatus
from protocol.quotas import QuotaRow, TenantKind
from protocol.status import (
    LATENCY_BOUNDS_US,
    NUM_BUCKETS,
    CopierStatus,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
    ServerStatus,
    SlowRequest,
    TierStatus,
)
from server.web.watch import Answer, View

SERVER = ServerStatus(
    version="0.1.0", pid=42, uptime_s=100.0, epoch=b"e" * 16, arena=b"a" * 16, endpoint="ipc:///s"
)
ENGINE = EngineStatus(
    client="kvkeep adapter 0.1.0 pid 7",
    pid=7,
    instance=b"i" * 16,
    state="serving",
    connected_s=50.0,
    idle_s=0.5,
    namespaces=(b"n" * 16,),
    sessions=1,
    leases=2,
    quarantined_bytes=4096,
    requested_chunks=10,
    hit_chunks=6,
)
NAMESPACE = NamespaceStatus(
    fingerprint=b"n" * 16,
    name="some/model",
    ranks=1,
    shards=1,
    chunk_tokens=32,
    chunk_blocks=1,
    sessions=1,
    chunks=20,
    bytes=1 << 20,
    pinned_chunks=3,
    idle_s=1.5,
)
TIER = TierStatus(
    name="disk",
    kind="disk",
    state="up",
    used_bytes=1 << 30,
    capacity_bytes=4 << 30,
    jobs=1,
    waiting_puts=2,
)
QUOTA = QuotaRow(
    kind=TenantKind.SALT, tenant=b"t" * 16, floor_bytes=100, limit_bytes=0, held_bytes=60
)
PREFIX = PrefixStatus(fingerprint=b"n" * 16, head=b"prefix", chunks=5, hits=7, idle_s=2.5)
SLOW = SlowRequest(
    op="STORE",
    seq=9,
    request=1 << 60,
    client="kvkeep adapter 0.1.0 pid 7",
    instance=b"i" * 16,
    fingerprint=b"n" * 16,
    spent_us=250_000,
    age_s=3.5,
)
COPIER = CopierStatus(name="host", state="up", restarts=0, jobs=0, stuck=0)


def buckets(**counts: int) -> tuple[int, ...]:
    """Buckets with counts at some of them: ``b3=5`` puts five into the fourth."""
    made = [0] * NUM_BUCKETS
    for name, count in counts.items():
        made[int(name[1:])] = count
    return tuple(made)


def latency(sum_us: int = 1000, **counts: int) -> OpLatency:
    """A histogram, as ``buckets`` has it."""
    told = buckets(**counts)
    return OpLatency(buckets=told, sum_us=sum_us, count=sum(told))


def status(**changes: Any) -> StatusReply:
    """A server with one of everything."""
    base = StatusReply(
        server=SERVER,
        engines=(ENGINE,),
        namespaces=(NAMESPACE,),
        tiers=(TIER,),
        copiers=(COPIER,),
        latency_bounds_us=LATENCY_BOUNDS_US,
        latency={"LOOKUP": latency(b0=98, b5=2)},
        prefixes=(PREFIX,),
        slow=(SLOW,),
    )
    return msgspec.structs.replace(base, **changes)


def answer(
    values: dict[str, int] | None = None,
    told: StatusReply | None = None,
    at_s: float = 1000.0,
    why: str = "",
    quotas: tuple[QuotaRow, ...] = (),
) -> Answer:
    """What came of one question."""
    return Answer(at_s, at_s + 1e9, 0.002, values or {}, told, why, quotas)


def view(values: dict[str, int] | None = None, told: StatusReply | None = None) -> View:
    """A server that answered just now."""
    latest = answer(values, told)
    return View(latest, latest)


def silent(why: str = "it did not answer in time") -> View:
    """A server that does not answer."""
    return View(answer(why=why), None)

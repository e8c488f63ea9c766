"""What works and is worth knowing all the same, one line each: of tiers, pins and quotas.

The command line and the page say the same, in these words. Must not know: how a server is asked,
how it is shown. Runs in: the process of the command line; the threads that serve pages.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from protocol.messages import StatusReply
from protocol.quotas import QuotaRow
from protocol.status import NamespaceStatus
from server.quotaspec import tenant_name
from server.sizes import format_size
from server.wording import counted

PINNED_SHARE = 0.8
"""Of L1's budget: with so much of it kept by operators, little is left to make room with."""

LIMIT_SHARE = 0.95
"""Of a tenant's limit: what it stores replaces its own."""

MAX_TENANTS = 3
"""Named one by one; the others are counted."""

REMOVED = "the arena's folder was removed and made again: the next server lacks what was in it"
_NAME_DIGITS = 12


def remarks(
    status: StatusReply, stats: Mapping[str, int], quotas: Sequence[QuotaRow] = ()
) -> list[str]:
    """What there is to say, empty for nothing.

    Args:
        status: a server's answer to STATUS.
        stats: its counters.
        quotas: of tenants that have one.
    """
    told = [f"tier {one.name}: {one.warning}" for one in status.tiers if one.warning]
    if stats.get("complaint_arena_removed", 0):
        told.append(REMOVED)
    told += _pins(status.namespaces, stats.get("arena_bytes", 0))
    # Of a tier that cannot do what it should nobody knows what makes room there.
    troubled = {one.name for one in status.tiers if one.warning or one.state != "up"}
    limited = list(_limited(quotas, troubled))
    told += limited[:MAX_TENANTS]
    if len(limited) > MAX_TENANTS:
        one, several = "more quota is at its limit", "more quotas are at their limits"
        told.append(f"and {counted(len(limited) - MAX_TENANTS, one, several)}")
    return told


def is_at_limit(row: QuotaRow) -> bool:
    """Whether a tenant has, of one quota, as much as it may."""
    return bool(row.limit_bytes) and row.held_bytes >= LIMIT_SHARE * row.limit_bytes


def pinned_bytes(spaces: Sequence[NamespaceStatus]) -> int:
    """About so many bytes of L1 are kept by operators: chunks of a namespace are of one size."""
    return sum(
        one.bytes * min(one.pinned_chunks, one.chunks) // max(1, one.chunks) for one in spaces
    )


def _pins(spaces: Sequence[NamespaceStatus], arena_bytes: int) -> Iterator[str]:
    pinned = pinned_bytes(spaces)
    if arena_bytes and pinned >= PINNED_SHARE * arena_bytes:
        yield (
            f"operators keep {format_size(pinned)} of L1's {format_size(arena_bytes)} pinned: "
            "little is left to make room with, until pins run out or kvkeep unpin takes some back"
        )


def _limited(quotas: Sequence[QuotaRow], troubled: Container[str]) -> Iterator[str]:
    for row in filter(is_at_limit, quotas):
        kind, _, digits = tenant_name(row.kind, row.tenant).partition("/")
        name = f"{kind}/{digits[:_NAME_DIGITS]}"
        where = row.tier or "L1"
        then = "" if row.tier in troubled else ": what it stores replaces its own"
        yield f"{name} is at its limit of {format_size(row.limit_bytes)} in {where}{then}"

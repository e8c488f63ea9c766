"""Namespaces, chains and tenants of the core's random engines: every kind of group and rank."""

from __future__ import annotations

from protocol.ids import Fingerprint
from protocol.namespace import LayerGroup, Namespace
from protocol.quotas import QuotaChange, TenantKind
from tests.server.core.world import PAGE, chain, namespace

CHAINS = ("x", "y", "z")
LENGTH = 14
TENANTS = (b"", b"s" * 16, b"t" * 16)
"""Of requests; the first has no salt."""

SPACES: tuple[Namespace, ...] = (
    namespace("one"),
    namespace("two", page_bytes=2 * PAGE, chunk_blocks=2),
    namespace(
        "mla",
        ranks=2,
        groups=(LayerGroup(layers=(0,), page_bytes=PAGE, replicated=True),),
    ),
    namespace(
        "window",
        groups=(
            LayerGroup(layers=(0,), page_bytes=PAGE),
            LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=96),
        ),
    ),
    namespace("tp", ranks=2),
    namespace(
        "windows only",
        ranks=2,
        chunk_blocks=2,
        groups=(
            LayerGroup(layers=(0,), page_bytes=PAGE, window_tokens=160),
            LayerGroup(layers=(1,), page_bytes=2 * PAGE, window_tokens=32, replicated=True),
        ),
    ),
    namespace(
        "many groups",
        ranks=2,
        groups=(
            LayerGroup(layers=(0,), page_bytes=PAGE, window_tokens=65),
            LayerGroup(layers=(1,), page_bytes=2 * PAGE),
            LayerGroup(layers=(2,), page_bytes=PAGE, replicated=True),
        ),
    ),
)


def keys_of(name: str, branch: int) -> list[bytes]:
    """Chains that share a prefix: branch 1 leaves branch 0 in the middle."""
    trunk = chain(name, LENGTH)
    return trunk if not branch else trunk[: LENGTH // 2] + chain(f"{name}b", LENGTH)[LENGTH // 2 :]


def quota_of(owners: list[Fingerprint], number: int, floor: int, above: int) -> QuotaChange:
    """A namespace or a salt gets a floor and maybe a limit, in pages, or loses both."""
    salt = TENANTS[number % len(TENANTS)]
    return QuotaChange(
        kind=TenantKind.SALT if salt else TenantKind.NAMESPACE,
        tenant=salt or owners[number // len(TENANTS) % len(owners)],
        floor_bytes=floor * PAGE,
        limit_bytes=(floor + above) * PAGE if above else 0,
    )

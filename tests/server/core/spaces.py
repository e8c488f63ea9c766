"""The namespaces and chains that the core's random engines use: every kind of group and rank."""

from __future__ import annotations

from protocol.namespace import LayerGroup, Namespace
from tests.server.core.world import PAGE, chain, namespace

CHAINS = ("x", "y", "z")
LENGTH = 14
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

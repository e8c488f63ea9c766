"""What a simulation is told, read from the command line's words.

Purpose: sizes, tiers, policies and rates, each checked, each error one line. Must not know: how a
simulation goes. Runs in: the process of the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ConfigError
from server.config import MAX_PROMOTE_S, MIN_PROMOTE_S
from server.core.config import CoreConfig
from server.core.tiers.policy import Policy
from server.sizes import invalid, parse_size, size_between

POLICIES = "write-through, on-evict, after-N-uses or none"
ROUTES = ("session", "round-robin")
UNLIMITED = 1 << 62
"""Bytes that no trace fills."""

DEADLINE_S = CoreConfig(0, 0).promote_deadline_s
BYTES_PER_TOKEN = 128 << 10
"""32 layers of 8 KV heads of 128 values of 2 bytes, K and V: what the benchmarks take."""

PREFILL_TOKENS_S = 3000.0
L1_GBPS = 10.0
READ_GBPS = {"disk": 3.0, "store": 2.5}
WRITE_GBPS = {"disk": 2.0, "store": 2.5}
"""Assumed, of one node: a data centre's NVMe drive, and 80 % of a 25 Gbit/s link."""

_AFTER_USES = re.compile(r"after-([1-9][0-9]{0,5})-uses")
_PERCENT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)%")
_MAX_TIERS = 8


@dataclass(frozen=True)
class Size:
    """A size in bytes, or relative to what the traces need in all.

    Attributes:
        num_bytes: when it is absolute.
        share: of the working set, otherwise; None for an absolute one.
    """

    num_bytes: int
    share: float | None = None

    def chunks(self, chunk_bytes: int, working_set: int) -> int:
        """How many chunks fit.

        Args:
            chunk_bytes: size of one.
            working_set: distinct chunks of the traces.
        """
        if self.share is None:
            return self.num_bytes // chunk_bytes
        return int(self.share * working_set)


@dataclass(frozen=True)
class Lower:
    """One lower tier.

    Attributes:
        name: in the figures.
        is_shared: one for all nodes, or one on each.
        size: what it holds.
        policy: what is written to it, and when.
        uses: for ``Policy.AFTER_USES``.
        read_gbps: GB/s of one node.
        write_gbps: likewise.
    """

    name: str
    is_shared: bool
    size: Size
    policy: Policy
    uses: int
    read_gbps: float
    write_gbps: float


@dataclass(frozen=True)
class Settings:
    """A simulation.

    Attributes:
        l1: memory of one node.
        lower: lower tiers, in the order in which they are asked.
        nodes: how many nodes.
        route: which node a request goes to: its session's, or the next one.
        copies: how many times the traces are replayed beside each other, each as other users.
        chunk_blocks: blocks a chunk.
        bytes_per_token: KV of one token.
        deadline_s: longest wait of a request for lower tiers.
        prefill_tokens_s: what an engine computes.
        l1_gbps: what it loads from memory.
        one_by_one: whether each request waits until everything before it has come to rest.
        count_partial: whether a block counts that is not full, or holds the last token.
    """

    l1: Size
    lower: tuple[Lower, ...] = ()
    nodes: int = 1
    route: str = ROUTES[0]
    copies: int = 1
    chunk_blocks: int = 1
    bytes_per_token: int = BYTES_PER_TOKEN
    deadline_s: float = DEADLINE_S
    prefill_tokens_s: float = PREFILL_TOKENS_S
    l1_gbps: float = L1_GBPS
    one_by_one: bool = False
    count_partial: bool = False


def size(key: str, text: str) -> Size:
    """Reads ``200G``, ``25%`` or ``unlimited``.

    Args:
        key: option, for the error.
        text: what it was given.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    if text.strip() == "unlimited":
        return Size(UNLIMITED)
    match = _PERCENT.fullmatch(text.strip())
    if match is not None:
        return Size(0, float(match[1]) / 100)
    try:
        return Size(parse_size(key, text))
    except ConfigError:
        valid = "a size such as 200G, a share of the traces' KV such as 25%, or unlimited"
        raise invalid(key, text, valid) from None


def tiers(
    texts: Sequence[str], policies: str, read_gbps: str | None, write_gbps: str | None
) -> tuple[Lower, ...]:
    """Reads the lower tiers.

    Args:
        texts: values of ``--l2``, each ``[disk:|store:]SIZE`` or several of them with commas.
        policies: one for all or one for each, with commas.
        read_gbps: likewise; None for each kind's own.
        write_gbps: likewise.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not parts:
        for key, given in (("read-gbps", read_gbps), ("write-gbps", write_gbps)):
            if given is not None:
                raise invalid(key, given, "a lower tier that it is of: --l2")
    if len(parts) > _MAX_TIERS:
        raise invalid("l2", ",".join(parts), f"at most {_MAX_TIERS} tiers")
    kinds = [part.partition(":")[0] if ":" in part else "disk" for part in parts]
    for kind, part in zip(kinds, parts, strict=True):
        if "?" in part:
            raise invalid("l2", part, "a size without options; --policy says what tiers are given")
        if kind not in READ_GBPS:
            raise invalid("l2", part, "disk:SIZE (one on each node) or store:SIZE (one for all)")
    chosen = [policy("policy", text) for text in _each("policy", policies, len(parts))]
    reads = _rates("read-gbps", read_gbps, kinds, READ_GBPS)
    writes = _rates("write-gbps", write_gbps, kinds, WRITE_GBPS)
    return tuple(
        Lower(
            name=kind if kinds[:at].count(kind) == 0 else f"{kind}{kinds[:at].count(kind) + 1}",
            is_shared=kind == "store",
            size=size("l2", part.rpartition(":")[2]),
            policy=chosen[at][0],
            uses=chosen[at][1],
            read_gbps=reads[at],
            write_gbps=writes[at],
        )
        for at, (kind, part) in enumerate(zip(kinds, parts, strict=True))
    )


def policy(key: str, text: str) -> tuple[Policy, int]:
    """Reads a policy.

    Args:
        key: option, for the error.
        text: its name.

    Returns:
        The policy, and the uses of after-N-uses or 0.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    match = _AFTER_USES.fullmatch(text)
    if match is not None:
        return Policy.AFTER_USES, int(match[1])
    for one in Policy:
        if one is not Policy.AFTER_USES and text == one.value:
            return one, 0
    raise invalid(key, text, POLICIES)


def bytes_per_token(text: str) -> int:
    """Reads the size of a token's KV.

    Args:
        text: as for other sizes.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    return size_between("kv-bytes-per-token", text, 1, 1 << 30)


def deadline(text: str | None) -> float:
    """Reads the longest wait, as ``launch`` takes it, in seconds.

    Args:
        text: seconds, with an optional ``s``; None for the server's own default.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    if text is None:
        return DEADLINE_S
    seconds = number("deadline", text.strip().removesuffix("s"))
    if not MIN_PROMOTE_S <= seconds <= MAX_PROMOTE_S:
        raise invalid("deadline", text, f"{MIN_PROMOTE_S:g} to {MAX_PROMOTE_S:g} seconds")
    return seconds


def number(key: str, text: str) -> float:
    """Reads a positive number.

    Args:
        key: option, for the error.
        text: what it was given.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-6 <= value <= 1e9:
        raise invalid(key, text, "a number above 0")
    return value


def _each(key: str, text: str, count: int) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, count):
        raise invalid(key, text, f"one value, or one for each tier ({count})")
    return parts * count if len(parts) == 1 else parts


def _rates(key: str, text: str | None, kinds: list[str], usual: dict[str, float]) -> list[float]:
    if text is None:
        return [usual[kind] for kind in kinds]
    return [number(key, part) for part in _each(key, text, len(kinds))]

"""Settings of the core, already checked by whoever read them.

Must not know: files, environment, command lines. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.core.tiers.policy import Policy

MIB = 1 << 20
SECOND_NS = 1_000_000_000

MAX_TIERS = 8
"""A slot remembers in a byte which tiers have what it holds."""


@dataclass(frozen=True)
class TierConfig:
    """What the core needs to know of one tier.

    Attributes:
        name: of its figures; lower-case letters, digits and underscores.
        policy: what is written there, and when.
        uses: of ``Policy.AFTER_USES``: as often a chunk was used before it is written.
        window_bytes: most bytes of values on their way, both ways together; a larger single job
            goes alone.
        kind: of store, for people.
        lists: whether it can say what namespaces it has.
        shared_bytes: what tenants' floors there may add up to; 0 where it keeps none.
        has_ledger: whether it knows what this server wrote, and keeps tenants' limits alone.
    """

    name: str
    policy: Policy = Policy.WRITE_THROUGH
    uses: int = 0
    window_bytes: int = 256 * MIB
    kind: str = ""
    lists: bool = False
    shared_bytes: int = 0
    has_ledger: bool = False


@dataclass(frozen=True)
class Identity:
    """What the server tells of itself.

    Attributes:
        version: of the program.
        pid: of its process, 0 to tell none.
        endpoint: URL on which it listens.
        begun_ns: when it was built, on its monotonic clock.
    """

    version: str = ""
    pid: int = 0
    endpoint: str = ""
    begun_ns: int = 0


@dataclass(frozen=True)
class Adopted:
    """What was taken over from the server before.

    Attributes:
        chunks: of all namespaces.
        num_bytes: of slots that hold them.
        seconds: that it took.
    """

    chunks: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Outside:
    """What STATUS tells of the server that only who runs the core knows.

    Attributes:
        http: URL at which pages are served; empty while nothing listens.
        started_in_s: from the start of the process until engines could connect; 0 before.
        adopted: what was taken over from the server before.
        silent_s: by number of a copier, for how long it has had work and answered nothing.
    """

    http: str = ""
    started_in_s: float = 0.0
    adopted: Adopted = Adopted()
    silent_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CoreConfig:
    """What the core needs to know from the operator.

    Attributes:
        arena_bytes: budget of all extent files, those included that are unlinked and still mapped.
        extent_bytes: wanted length of one extent file.
        side_path: path of the side socket, told to a HELLO that has no token.
        copy_window_bytes: bytes in flight per copier.
        copy_piece_bytes: most bytes of one piece of copying.
        heartbeat_s: how often a client should name its live requests.
        commit_timeout_s: how long a copied STORE waits for its COMMIT.
        incomplete_timeout_s: age from which a chunk without all its shards is evicted first.
        max_processes: side connections, each one process.
        max_pools_per_process: descriptors one process may have passed and not taken back.
        max_sessions_per_process: registrations of one process.
        max_namespaces: namespaces with content or with engines.
        max_pins: prefixes pinned by PIN.
        max_leased_slots_per_instance: slot descriptors one engine's leases may remember.
        tiers: below L1, the first one is asked first; at most MAX_TIERS.
        promote_deadline_s: longest time from a LOOKUP to the final answer about its promotion.
        promote_piece_bytes: most bytes that are read from a tier at once; a larger chunk goes
            alone.
        namespace_ttl_s: how long a namespace without engines stays that nobody uses; 0 for as long
            as nobody needs its room.
        identity: what STATUS tells of the server.
        traces: whether messages that bring a traceparent are told of.
    """

    arena_bytes: int
    extent_bytes: int
    side_path: str = ""
    copy_window_bytes: int = 64 * MIB
    copy_piece_bytes: int = 32 * MIB
    heartbeat_s: float = 2.0
    commit_timeout_s: float = 60.0
    incomplete_timeout_s: float = 60.0
    max_processes: int = 1024
    max_pools_per_process: int = 16
    max_sessions_per_process: int = 16
    max_namespaces: int = 256
    max_pins: int = 16_384
    max_leased_slots_per_instance: int = 1 << 22
    tiers: tuple[TierConfig, ...] = ()
    promote_deadline_s: float = 1.0
    promote_piece_bytes: int = 16 * MIB
    namespace_ttl_s: float = 0.0
    identity: Identity = Identity()
    traces: bool = False

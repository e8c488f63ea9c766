"""What each figure of STATS is: counter or gauge, its unit, and what it says in one line.

Purpose: whoever shows or exports STATS has one table to go by; docs/operations.md says the same at
more length, and tests hold this table, that page and a live server's answer together. Must not
know: values, how anybody writes them down. Runs in: whoever asks a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

TIER = "tier"
"""Label of figures that each tier has."""


class Kind(Enum):
    """How a figure behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Unit(Enum):
    """What a figure counts in; ``NONE`` for things."""

    NONE = ""
    BYTES = "bytes"
    MICROSECONDS = "microseconds"


@dataclass(frozen=True)
class Figure:
    """One figure, or one of several that differ in a label.

    Attributes:
        kind: how it behaves over time.
        help: what it says, one line.
        unit: what it counts in.
    """

    kind: Kind
    help: str
    unit: Unit = Unit.NONE


@dataclass(frozen=True)
class Found:
    """A name of STATS, taken apart.

    Attributes:
        figure: what it is.
        family: the name without its label: ``error_no_room`` is one of ``error``.
        label: what tells the family's figures apart, such as ``code``; empty for a single figure.
        value: of that label.
    """

    figure: Figure
    family: str
    label: str = ""
    value: str = ""


def _counter(text: str, unit: Unit = Unit.NONE) -> Figure:
    return Figure(Kind.COUNTER, text, unit)


def _gauge(text: str, unit: Unit = Unit.NONE) -> Figure:
    return Figure(Kind.GAUGE, text, unit)


FIGURES: dict[str, Figure] = {
    "requests": _counter("Requests taken, those of every operation together"),
    "requests_refused": _counter("Frames that were no valid request"),
    "replies_unheard": _counter("Answers to connections that their client had closed"),
    "lookups": _counter("LOOKUPs of engines"),
    "lookup_chunks": _counter("Chunks that LOOKUPs asked for"),
    "hit_chunks": _counter("Chunks that LOOKUPs and the QUERYs after them were offered"),
    "retrieved_chunks": _counter("Chunks named for loading"),
    "requested_tokens": _counter("Tokens of the chunks that LOOKUPs asked for"),
    "loaded_tokens": _counter("Tokens of offered chunks that were named for loading, each once"),
    "adopted_chunks": _counter("Chunks taken over from a former server at the start"),
    "registrations": _counter("Pools registered, again after each reconnection"),
    "stores_answered": _counter("STOREs answered"),
    "stored_chunks": _counter("Chunks that STOREs copied"),
    "published_chunks": _counter("Chunks that a COMMIT published"),
    "copy_jobs": _counter("Pieces of work given to copiers"),
    "copied_bytes": _counter("Bytes that copiers copied", Unit.BYTES),
    "copies_failed": _counter("Pieces of work that failed in a copier"),
    "evicted_chunks": _counter("Chunks that made room for others"),
    "evicted_incomplete_chunks": _counter("Of those, chunks that some rank never stored"),
    "reclaimed_chunks": _counter("Chunks that left with a whole extent"),
    "cleared_chunks": _counter("Chunks that CLEAR took away"),
    "deleted_chunks": _counter("Chunks that DELETE took away"),
    "retired_namespaces": _counter("Namespaces forgotten since nobody used them any more"),
    "retired_chunks": _counter("Chunks of those that were in L1"),
    "prefetches": _counter("LOOKUPs that lower tiers were asked for"),
    "prefetches_late": _counter("Prefetches that the deadline ended"),
    "warms": _counter("Warm jobs begun"),
    "warmed_chunks": _counter("Chunks that warm jobs loaded"),
    "warmed_bytes": _counter("Bytes that warm jobs loaded", Unit.BYTES),
    "event_losses": _counter("Readers of the event stream that came too late for some events"),
    "extents_failed": _counter("Extents that could not be made"),
    "web_restarts": _counter("Times that another web process had to be started"),
    "traces_restarts": _counter("Times that another traces process had to be started"),
    "traces_noted": _counter("Traced messages that the traces process was told of"),
    "traces_left_out": _counter("Traced messages that were too many, or that it had no room for"),
    "traces_spans_sent": _counter("Spans that the collector took"),
    "traces_spans_lost": _counter("Spans that the collector did not take, or that were too many"),
    "internal_errors": _counter("Faults of the server's own"),
    "loop_bursts": _counter("Times that the main thread was at one thing"),
    "loop_bursts_over_300_us": _counter("Of those, times that took more than 300 us of CPU"),
    "loop_burst_p50_us": _gauge("CPU that half of all bursts took at most", Unit.MICROSECONDS),
    "loop_burst_p99_us": _gauge("CPU that 99 % of bursts took at most", Unit.MICROSECONDS),
    "loop_burst_max_us": _gauge("CPU of the longest burst", Unit.MICROSECONDS),
    "processes": _gauge("Processes on the side socket, whoever asks included"),
    "connections": _gauge("ZMQ connections, the asking one included"),
    "instances": _gauge("Engines with registered ranks"),
    "sessions": _gauge("Registered ranks"),
    "namespaces": _gauge("Namespaces with engines or content"),
    "chunks": _gauge("Chunks in the index"),
    "slots_held": _gauge("Slots published"),
    "slots_reserved": _gauge("Slots that saves are being copied to"),
    "leases": _gauge("Leases of engines' requests"),
    "pinned_slots": _gauge("Slots named for loading and not given back"),
    "pinned_prefixes": _gauge("Prefixes that operators keep with PIN"),
    "stores": _gauge("STOREs that are not committed or withdrawn yet"),
    "arena_bytes": _gauge("Budget of the arena", Unit.BYTES),
    "arena_held_bytes": _gauge("Bytes of the arena that hold chunks: its fill", Unit.BYTES),
    "arena_used_bytes": _gauge("Bytes of the arena that extents take", Unit.BYTES),
    "extents": _gauge("Extents of the arena"),
    "arena_quarantined_bytes": _gauge(
        "Bytes of extents that wait until processes have let go of them", Unit.BYTES
    ),
    "parties_awaited": _gauge("Processes of a former server that may still touch its extents"),
    "extents_unmapped": _gauge("Extents that an engine was passed and has not mapped yet"),
    "copies_in_flight": _gauge("Pieces of work that copiers have"),
    "copy_bytes_in_flight": _gauge("Bytes of those", Unit.BYTES),
    "events_kept": _gauge("Events that readers of the stream may still ask for"),
    "event_readers_waiting": _gauge("Readers of the event stream that wait for news"),
    "prefetches_waiting": _gauge("Requests that wait for what tiers bring"),
    "promotions_running": _gauge("Chains that are on their way up from tiers"),
    "chains_to_look_after": _gauge("Chains that were used and are still to be named to tiers"),
    "device_copiers": _gauge("Devices that have a copier"),
    "copiers_stuck": _gauge("Copiers that were killed and do not end"),
    "copies_stranded": _gauge("Pieces of work that stuck copiers had"),
    "web_pid": _gauge("The web process; 0 while none runs"),
    "traces_pid": _gauge("The traces process; 0 while none runs"),
    "replies_owed": _gauge("Requests being worked on, the asking one included"),
}
"""Figures that there is one of, by name."""

FAMILIES: dict[str, tuple[str, Figure]] = {
    "error": ("code", _counter("Requests answered with an error")),
    "miss_chunks": ("reason", _counter("Chunks asked for and not there")),
    "hit_tokens": (TIER, _counter("Tokens of the chunks offered, by where they came from")),
    "complaint": ("kind", _counter("Trouble that has a line in the log, logged or not")),
    "copier_pid": ("device", _gauge("Process of a device's copier; 0 while it does not run")),
    "copier_device_bytes": ("device", _gauge("Device memory that a copier takes", Unit.BYTES)),
    "copier_numa_node": ("device", _gauge("NUMA node on which a device's copier was placed")),
    "arena_bytes_node": ("node", _gauge("Bytes of the arena on a NUMA node", Unit.BYTES)),
}
"""Figures named ``FAMILY_value``, by family: the label's name, and what they are."""

COMPLAINTS = (
    "adoption_fault",
    "arena_removed",
    "chosen_id",
    "connections_bound",
    "copier_error",
    "copier_lost",
    "copier_refused",
    "copier_stuck",
    "copier_wedged",
    "core_fault",
    "effect_fault",
    "extent_far",
    "frames",
    "guard_fault",
    "hoarder_cut",
    "loop_fault",
    "memory_bound",
    "memory_unexplained",
    "peer_dropped",
    "porter_lost",
    "porter_stuck",
    "porter_wedged",
    "quota_lost",
    "request_failed",
    "side_accept",
    "side_deaf",
    "side_fault",
    "side_refused",
    "socket_removed",
    "store_cut",
    "tier_error",
    "tier_refused",
    "traces_lost",
    "traces_off",
    "traces_refused",
    "traces_said",
    "traces_stuck",
    "web_lost",
    "web_refused",
    "web_said",
    "web_stuck",
)
"""Kinds of ``complaint_KIND`` that a server of this version may have."""

TIER_FIGURES: dict[str, Figure] = {
    "hit_chunks": _counter("Chunks that a tier brought and that were published in L1"),
    "warmed_chunks": _counter("Chunks that a tier brought before anybody asked for them"),
    "get_bytes": _counter("Bytes that a tier brought", Unit.BYTES),
    "get_us": _counter("Time from reads to their answers, all together", Unit.MICROSECONDS),
    "put_bytes": _counter("Bytes written to a tier", Unit.BYTES),
    "put_us": _counter("Time from writes to their answers, all together", Unit.MICROSECONDS),
    "puts_dropped": _counter("Chunks given up without being written to a tier"),
    "evicted_unsaved": _counter("Parts of chunks that left L1 before they were written"),
    "errors": _counter("Values, or whole requests, that failed in a tier"),
    "corrupt": _counter("Values of a tier that are not what their header says"),
    "absent": _counter("Values that a tier promised and did not have"),
    "locked": _counter("Values encrypted otherwise than this server can read, or was told to keep"),
    "values_lost": _counter("Values that a tier had lost when they were used in L1"),
    "no_room": _counter("Values that did not fit into a tier"),
    "over": _counter("Values that tenants' quotas in a tier left no room for"),
    "breaker_opens": _counter("Times that a tier was left alone for a while"),
    "stalls": _counter("Times that a tier neither answered nor moved a byte"),
    "deletes_widened": _counter("Times that all of a namespace went instead of some chunks"),
    "drops_lost": _counter("Namespaces that a tier was to forget and that were given up"),
    "porters_lost": _counter("Times that a tier's porter ended or was killed"),
    "open_refused": _counter("Times that a tier could not be opened"),
    "porter_pid": _gauge("Process of a tier's porter; 0 while none runs"),
    "up": _gauge("1 while a tier is used"),
    "used_bytes": _gauge(
        "Bytes that a tier said it holds when it was last looked at: 10 s ago at most while it is "
        "used, longer ago while it is not",
        Unit.BYTES,
    ),
    "capacity_bytes": _gauge(
        "Bytes that a tier said at the same time it can hold; 0 for unknown", Unit.BYTES
    ),
    "jobs": _gauge("Jobs that a tier's porter has"),
    "puts_waiting": _gauge("Chunks that wait to be written to a tier"),
    "drops_owed": _gauge("Namespaces of which a tier is still to forget something"),
    "stuck": _gauge("Porters of a tier that were killed and do not end"),
}
"""Figures named ``tier_NAME_…``, by what follows; none ends with another one, so that it is clear
where a tier's name ends."""


def find(name: str) -> Found | None:
    """Takes a name of STATS apart.

    Args:
        name: as in ``StatsReply.values``.

    Returns:
        What it is; None for a name that a later server may have.
    """
    single = FIGURES.get(name)
    if single is not None:
        return Found(single, name)
    if name.startswith("tier_"):
        for end, figure in TIER_FIGURES.items():
            tier = name[len("tier_") : -len(end) - 1]
            if tier and name.endswith(f"_{end}"):
                return Found(figure, f"tier_{end}", TIER, tier)
    for family, (label, figure) in FAMILIES.items():
        value = name[len(family) + 1 :]
        if value and name.startswith(f"{family}_"):
            return Found(figure, family, label, value)
    return None

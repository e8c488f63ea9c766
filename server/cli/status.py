"""``status``: how a running server is, on one screen.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from typing import Any

import click

from server.cli import reaching
from server.wording import counted

MAX_KINDS = 5
"""Of complaints."""

MAX_ROWS = 12
"""Rows of each table; the rest is counted. ``--json`` has all that the server tells."""


@click.command(name="status")
@reaching.options
def command(endpoint: str | None, as_json: bool) -> None:
    """Show how a running server is: its fill, hits, engines, tiers and copiers.

    The exit code is 0 when all is well, 1 when no server answers, 3 when something is not as it
    should be; it says what.
    """
    from server.cli import overview

    at = reaching.place(endpoint)
    with reaching.connected(at, "status") as asker:
        status = asker.status(reaching.LIMIT_S)
        stats = asker.stats(reaching.LIMIT_S)
        document = overview.document(status, stats, reaching.quotas(asker))
    if as_json:
        reaching.show(document)
    else:
        click.echo(text(document))
    if not document["healthy"]:
        raise SystemExit(reaching.EXIT_OTHER)


def text(document: dict[str, Any]) -> str:
    """The whole screen.

    Args:
        document: of ``overview.document``.
    """
    parts = [head(document), engines(document), tiers(document), copiers(document)]
    parts.append(namespaces(document))
    return "\n\n".join(part for part in parts if part)


def head(document: dict[str, Any]) -> str:
    """The lines above the tables."""
    from server.cli.tables import plain, share, span
    from server.sizes import format_size

    server, l1, hits = document["server"], document["l1"], document["hits"]
    used, whole = l1["held_bytes"], l1["capacity_bytes"]
    lines = [
        *verdict(
            f"kvkeep {plain(server['version'])} at {plain(server['endpoint'])}, pid "
            f"{server['pid']}, up {span(server['uptime_s'])}",
            document,
        ),
        *kept(server),
        f"L1     {format_size(used)} of {format_size(whole)} ({share(used, whole)}) in "
        f"{l1['chunks']:,} chunks{with_pins(l1)}, extents take {format_size(l1['extent_bytes'])}; "
        f"{l1['evicted_chunks'] + l1['reclaimed_chunks']:,} evicted{with_extents(l1)}",
        f"hits   {share(hits['hit_chunks'], hits['requested_chunks'])} of "
        f"{hits['requested_chunks']:,} chunks asked for; {hits['retrieved_chunks']:,} loaded, "
        f"{hits['published_chunks']:,} saved",
    ]
    if l1["quarantined_bytes"]:
        size = format_size(l1["quarantined_bytes"])
        lines.append(f"       {size} wait for engines, or former ones, to let go of them")
    asked = document["latency"].get("LOOKUP")
    if asked:
        lines.append(
            f"LOOKUP {asked['count']:,} answered, half of them within {asked['p50_us'] / 1000:g} "
            f"ms, 99 % within {asked['p99_us'] / 1000:g} ms"
        )
    return "\n".join(lines + logged(document["complaints"]))


def verdict(who: str, found: dict[str, Any]) -> list[str]:
    """Who it is and how it is, in the first line, or one line below for each of several troubles.

    Args:
        who: the beginning of the first line.
        found: with ``reasons`` and ``remarks``.
    """
    from server.cli.tables import plain

    wrong = [plain(reason) for reason in found["reasons"]]
    if len(wrong) > 1:
        lines = [f"{who}: {len(wrong)} things are wrong", *(f"wrong  {text}" for text in wrong)]
    else:
        lines = [f"{who}: {wrong[0] if wrong else 'healthy'}"]
    return lines + [f"note   {plain(text)}" for text in found["remarks"]]


def logged(complaints: dict[str, int]) -> list[str]:
    """A line for the trouble that the log has, where it has any."""
    from server.cli.tables import plain

    if not complaints:
        return []
    most = sorted(complaints.items(), key=lambda one: (-one[1], one[0]))
    told = ", ".join(f"{plain(kind)} {count:,}" for kind, count in most[:MAX_KINDS])
    left = len(most) - MAX_KINDS
    more = f" and {counted(left, 'more kind')}" if left > 0 else ""
    return [f"log    {told}{more} since the start"]


def with_pins(l1: dict[str, Any]) -> str:
    """How many chunks operators keep, where they keep some."""
    return f", {l1['pinned_chunks']:,} pinned" if l1["pinned_chunks"] else ""


def with_extents(l1: dict[str, Any]) -> str:
    """How much of what was evicted went with its extent, where some did."""
    reclaimed = l1["reclaimed_chunks"]
    return f", {reclaimed:,} of these with whole extents" if reclaimed else ""


def kept(server: dict[str, Any]) -> list[str]:
    """What the server took over when it started, and where its pages are, as far as it has any."""
    from server.cli.tables import plain
    from server.sizes import format_size

    lines = []
    if server["adopted_chunks"]:
        size = format_size(server["adopted_bytes"])
        lines.append(
            f"kept   {server['adopted_chunks']:,} chunks ({size}) of the server before, taken over "
            f"in {server['adopted_in_s']:.2f} s; started in {server['started_in_s']:.2f} s"
        )
    if server["http"]:
        lines.append(f"pages  {plain(server['http'])}")
    return lines


def engines(document: dict[str, Any]) -> str:
    """A row for each engine's process; what it holds back only where one does."""
    from server.cli.tables import Column, plain, share, span, table
    from server.sizes import format_size

    held = [format_size(one["quarantined_bytes"]) for one in document["engines"]]
    is_any_held = any(one["quarantined_bytes"] for one in document["engines"])
    rows = [
        [
            plain(one["client"]) or "?",
            str(one["pid"]),
            one["state"],
            span(one["connected_s"]),
            span(one["idle_s"]),
            str(one["sessions"]),
            str(one["leases"]),
            share(one["hit_chunks"], one["requested_chunks"]),
            *([size] if is_any_held else []),
        ]
        for one, size in zip(document["engines"], held, strict=True)
    ]
    if not rows:
        return "no engine is connected"
    columns = [Column("engine", can_shrink=True), Column("pid", is_number=True), Column("state")]
    names = ["here for", "last heard", "ranks", "leases", "hits"]
    names += ["holds back"] if is_any_held else []
    columns += [Column(name, is_number=True) for name in names]
    more = document["engines_more"] + max(0, len(rows) - MAX_ROWS)
    return table(columns, rows[:MAX_ROWS]) + left_out(more)


def tiers(document: dict[str, Any]) -> str:
    """A row for each lower tier; nothing where there is none."""
    from server.cli.tables import Column, share, table
    from server.sizes import format_size

    rows = []
    for one in document["tiers"]:
        used, whole = one["used_bytes"], one["capacity_bytes"]
        fill = f"{format_size(used)} of {format_size(whole)}" if whole else "unknown"
        row = [one["name"], one["kind"], tier_state(one), fill, share(used, whole)]
        rows.append([*row, str(one["jobs"]), f"{one['waiting_puts']:,}"])
    if not rows:
        return ""
    columns = [Column("tier"), Column("kind"), Column("state"), Column("holds", is_number=True)]
    columns += [Column(name, is_number=True) for name in ("full", "jobs", "to write")]
    return table(columns, rows)


def copiers(document: dict[str, Any]) -> str:
    """A row for each copier."""
    from server.cli.tables import Column, table

    rows = [
        [one["name"], copier_state(one), str(one["restarts"]), str(one["jobs"])]
        for one in document["copiers"]
    ]
    columns = [Column("copier"), Column("state")]
    columns += [Column(name, is_number=True) for name in ("restarts", "jobs")]
    return table(columns, rows[:MAX_ROWS]) + left_out(len(rows) - MAX_ROWS)


def copier_state(one: dict[str, Any]) -> str:
    """How a copier stands, in two words at most."""
    from protocol.status import COPIER_SILENT_S

    is_silent = one["state"] == "up" and one["silent_s"] >= COPIER_SILENT_S
    return f"silent {one['silent_s']:.0f}s" if is_silent else str(one["state"])


def tier_state(one: dict[str, Any]) -> str:
    """How a tier stands, in two words at most."""
    from protocol.status import TIER_SILENT_S

    is_silent = one["state"] == "up" and one["silent_s"] >= TIER_SILENT_S
    return f"silent {one['silent_s']:.0f}s" if is_silent else str(one["state"])


def namespaces(document: dict[str, Any]) -> str:
    """A row for each of the fullest namespaces."""
    from server.cli.tables import FINGERPRINT_SHOWN, Column, plain, span, table
    from server.sizes import format_size

    rows = [
        [
            one["fingerprint"][:FINGERPRINT_SHOWN],
            plain(one["name"]),
            f"{one['chunks']:,}",
            format_size(one["bytes"]),
            f"{one['pinned_chunks']:,}",
            span(one["idle_s"]),
        ]
        for one in document["namespaces"]
    ]
    if not rows:
        return ""
    columns = [Column("namespace"), Column("model", can_shrink=True)]
    names = ("chunks", "bytes", "pinned", "unused for")
    columns += [Column(name, is_number=True) for name in names]
    more = document["namespaces_more"] + max(0, len(rows) - MAX_ROWS)
    return table(columns, rows[:MAX_ROWS]) + left_out(more)


def left_out(count: int) -> str:
    """A line for rows that are not shown."""
    return f"\n... and {count} more" if count > 0 else ""

"""What ``launch`` prints once it serves: where engines connect, what it has, where its pages are.

Purpose: one line when engines can connect and one when pages are served, on stdout whatever the log
level is. Must not know: how anything of it is made. Runs in: the server's main process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from server.config import ServerConfig
from server.core.config import Adopted
from server.sizes import format_size


@dataclass(frozen=True)
class Place:
    """Where engines find it, and what it serves.

    Attributes:
        side_path: of the side socket.
        arena: folder.
        arena_bytes: its budget.
        extent_bytes: of one file.
    """

    side_path: str
    arena: str
    arena_bytes: int
    extent_bytes: int


def ready(config: ServerConfig, place: Place, adopted: Adopted, started_in_s: float) -> str:
    """The line that says that engines can connect.

    Args:
        config: settings.
        place: where.
        adopted: what was there.
        started_in_s: since the process began.
    """
    tiers = "".join(f" > {spec.name}" for spec in config.tiers)
    taken = f"{took_over(adopted)}, " if adopted.chunks else ""
    return (
        f"kvkeep ready: endpoint {config.endpoint.url}, side socket {place.side_path}, "
        f"arena {format_size(place.arena_bytes)} in {place.arena} "
        f"(extents of {format_size(place.extent_bytes)}), tiers L1{tiers}, {taken}"
        f"pid {os.getpid()}, started in {started_in_s:.2f} s\n"
    )


def serving(config: ServerConfig, place: Place, adopted: Adopted) -> str:
    """The same in a few words, for a service manager.

    Args:
        config: settings.
        place: where.
        adopted: what was there.
    """
    taken = f"; {took_over(adopted)}" if adopted.chunks else ""
    return f"serving {format_size(place.arena_bytes)} at {config.endpoint.url}{taken}"


def took_over(adopted: Adopted) -> str:
    """What was taken over, for people."""
    size = format_size(adopted.num_bytes)
    return f"adopted {adopted.chunks} chunks in {adopted.seconds:.2f} s ({size})"


def pages(url: str) -> str:
    """The line that says where pages and metrics are.

    Args:
        url: with the port that it listens on, also where port 0 was asked for.
    """
    return f"kvkeep pages: {url}\n"

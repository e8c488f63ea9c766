"""Whether arena and tiers fit this machine: sizes as set or derived, and the length of files.

Must not know: how an arena is made. Runs in: the main thread, at start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import ConfigError, ErrorCode
from server import config as settings
from server.config import ServerConfig
from server.shell import memory
from server.tierspec import TierSpec


def fit_arena(
    config: ServerConfig, folder_free_bytes: int, held_bytes: int = 0, is_in_memory: bool = True
) -> int:
    """Size of the arena, as set or by what is free (B37).

    Args:
        config: settings.
        folder_free_bytes: what the arena's file system leaves.
        held_bytes: what a predecessor's extents take there already: part of the arena, not of
            what is in its way.
        is_in_memory: whether the file system is memory.

    Returns:
        Bytes.

    Raises:
        ConfigError: INVALID_CONFIG naming what is too small.
    """
    group = memory.cgroup_room(config.cgroup_root)
    rooms = [memory.machine_room(), *([group] if group is not None else [])]
    lent_bytes = memory_of(config.tiers)
    if lent_bytes:
        what = f", less {settings.format_size(lent_bytes)} for porters of lower tiers"
        rooms = [
            memory.Room(room.name + what, max(0, room.free_bytes - lent_bytes)) for room in rooms
        ]
    folder_free_bytes += held_bytes
    if is_in_memory:
        rooms = [memory.Room(room.name, room.free_bytes + held_bytes) for room in rooms]
    own = memory.process_room()
    rooms += [own] if own is not None else []
    wanted_bytes = config.arena_bytes
    if wanted_bytes == 0:
        free_bytes = min(room.free_bytes for room in rooms)
        wanted_bytes = settings.derive_arena_bytes(free_bytes, folder_free_bytes)
    rooms.append(memory.Room("the arena folder's file system", folder_free_bytes))
    tightest = min(rooms, key=lambda room: room.free_bytes)
    if wanted_bytes > tightest.free_bytes or wanted_bytes < settings.MIN_ARENA_BYTES:
        wanted = settings.format_size(max(wanted_bytes, settings.MIN_ARENA_BYTES))
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"l1-size={wanted} does not fit: {tightest.name} leaves "
            f"{settings.format_size(tightest.free_bytes)}",
            key="l1-size",
            free_bytes=tightest.free_bytes,
        )
    return wanted_bytes


def memory_of(tiers: Sequence[TierSpec]) -> int:
    """Memory that porters take as their tiers' URLs say, beside the arena.

    Args:
        tiers: of the server.

    Returns:
        Bytes: what Mooncake's lend to the pool, and their buffers.
    """
    mine = [tier for tier in tiers if tier.kind == "mooncake"]
    return sum(tier.number("segment") + tier.number("local_buffer") for tier in mine)


def check_tiers(tiers: Sequence[TierSpec]) -> None:
    """Checks that what a disk tier may take is no more than its disk has (B37), for ``doctor``.

    What is free there does not count: some of it the tier may hold already. A start goes on
    without: a disk that is not mounted must not cost the whole cache.

    Args:
        tiers: of the server.

    Raises:
        ConfigError: INVALID_CONFIG naming tier and disk.
    """
    for tier in tiers:
        if tier.kind != "disk":
            continue
        folder = Path(tier.location)
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        try:
            found = os.statvfs(folder)
        except OSError:
            continue  # the tier says it, and is tried again
        whole_bytes, size_bytes = found.f_blocks * found.f_frsize, tier.number("size")
        if 0 < whole_bytes < size_bytes:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"l2: {tier.name}: size={settings.format_size(size_bytes)} does not fit: the file "
                f"system of {folder} has {settings.format_size(whole_bytes)} in all",
                key="l2",
            )


def check_file_limit(extent_bytes: int) -> None:
    """Checks that one extent may be as long as it is to be (B37).

    Args:
        extent_bytes: length of extent files.

    Raises:
        ConfigError: INVALID_CONFIG naming the limit.
    """
    room = memory.file_room()
    if room is not None and extent_bytes > room.free_bytes:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"extent-size={settings.format_size(extent_bytes)} does not fit: {room.name} leaves "
            f"{settings.format_size(room.free_bytes)}",
            key="extent-size",
        )

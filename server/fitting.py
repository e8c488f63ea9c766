"""Whether the arena fits this machine: its size, as set or derived, and the length of its files.

Must not know: how an arena is made. Runs in: the main thread, at start.
"""

from __future__ import annotations

from protocol.errors import ConfigError, ErrorCode
from server import config as settings
from server.config import ServerConfig
from server.shell import memory


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

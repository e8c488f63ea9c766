"""What ``doctor`` looks at of the set-up: settings, whether a server would fit, its files.

Must not know: how findings are shown; it starts and touches nothing. Runs in: the process of the
command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from configparser import ConfigParser, Error
from importlib import metadata
from pathlib import Path

from protocol import __version__
from protocol.errors import ConfigError
from server import config, fitting, gathering
from server.cli import hostcheck, servercheck
from server.cli.findings import Finding, Level
from server.config import ServerConfig
from server.shell import memory
from server.sizes import format_size

PACKAGES = (
    *("pyzmq", "msgpack", "msgspec", "numpy", "lmdb", "xxhash", "click", "rich"),
    *("prometheus-client", "waitress"),
)
LOGIND = (
    "/usr/lib/systemd/logind.conf.d",
    "/etc/systemd/logind.conf",
    "/run/systemd/logind.conf.d",
    "/etc/systemd/logind.conf.d",
)
"""Where ``RemoveIPC`` may be set; the last word counts. Source: logind.conf(5)."""

_INSTALL = "install kvkeep anew, with the interpreter above"

FIRST_USER = 1000
"""Users below are the system's, whose files stay. Source: systemd, SYSTEM_UID_MAX."""


def findings(environ: Mapping[str, str], endpoint: str | None = None) -> list[Finding]:
    """Everything about the set-up, as this process sees it.

    Args:
        environ: of this process.
        endpoint: where to look for the server, as typed; None for where ``launch`` would listen.
    """
    found = [versions()]
    try:
        gathering.refuse_unknown(environ)
        gathered = gathering.gather({"endpoint": endpoint}, environ)
        settings = config.parse(gathered, environ)
        fitting.check_tiers(settings.tiers)
    except ConfigError as error:
        advice = "kvkeep config shows what holds; docs/configuration.md lists all settings"
        return [*found, Finding(Level.ERROR, "settings", error.message, advice)]
    given = ", ".join(f"{key} (from {one.source})" for key, one in gathered.values.items())
    found.append(Finding(Level.OK, "settings", f"set: {given}" if given else "all at defaults"))
    found += [Finding(Level.NOTE, "settings", note) for note in gathered.notes]
    is_set = "endpoint" in gathered.values and endpoint is None
    source = gathered.values["endpoint"].source if is_set else ""
    answered = servercheck.findings(settings, source, environ)
    found += [*answered, *servercheck.engines(settings, environ)]
    if (answered[0].about, answered[0].level) == (servercheck.ABOUT, Level.NOTE):  # none is there
        found.append(room(settings, hostcheck.arena_parent(environ)))
    removed = removal(settings, os.geteuid(), LOGIND)
    return [*found, *([removed] if removed is not None else [])]


def versions() -> Finding:
    """What is installed; a package that is missing here is missing for the server."""
    told, missing = [], []
    for name in PACKAGES:
        try:
            told.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    text = f"kvkeep {__version__}; {', '.join(told)}"
    if missing:
        return Finding(Level.ERROR, "versions", f"{text}; missing: {', '.join(missing)}", _INSTALL)
    return Finding(Level.OK, "versions", text)


def room(settings: ServerConfig, folder: Path) -> Finding:
    """What ``launch`` would take now, or why it would be refused.

    Args:
        settings: of it.
        folder: where its arena would lie, or the nearest that exists.
    """
    try:
        found = os.statvfs(folder)
        free_bytes = found.f_bavail * found.f_frsize
        is_in_memory = memory.is_memory(str(folder))
        size = fitting.fit_arena(settings, free_bytes, is_in_memory=is_in_memory)
        config.derive_extent_bytes(size, settings.extent_bytes)
    except ConfigError as error:
        advice = "less --l1-size, or a wider limit: MemoryMax=, docker run --memory, --shm-size"
        return Finding(Level.ERROR, "memory", error.message, advice)
    except OSError as error:
        return Finding(Level.ERROR, "memory", f"{folder}: {error.strerror}")
    group = memory.cgroup_room(settings.cgroup_root)
    limit = f"; {group.name} leaves {format_size(group.free_bytes)}" if group is not None else ""
    free = format_size(memory.machine_room().free_bytes)
    text = f"{free} available{limit}; launch would take {format_size(size)}"
    return Finding(Level.OK, "memory", text)


def removal(settings: ServerConfig, uid: int, places: Iterable[str]) -> Finding | None:
    """Whether systemd removes the arena when its user logs out.

    Args:
        settings: say where the arena is.
        uid: of the server's user.
        places: files and folders of logind's configuration.

    Returns:
        What there is to say; None where the arena is elsewhere, or there is no logind.
    """
    is_shared = not settings.arena_dir or settings.arena_dir.startswith("/dev/shm/")
    if not is_shared or not Path("/run/systemd/seats").is_dir():
        return None
    if uid < FIRST_USER:
        return Finding(Level.OK, "RemoveIPC", f"uid {uid} is a system user: its files stay")
    if remove_ipc(places):
        text = f"systemd removes the arena when the last login of uid {uid} ends"
        advice = "RemoveIPC=no in logind.conf, loginctl enable-linger, or a system user"
        return Finding(Level.WARNING, "RemoveIPC", text, advice)
    return Finding(Level.OK, "RemoveIPC", "off: the arena stays when its user logs out")


def remove_ipc(places: Iterable[str]) -> bool:
    """Logind's setting; it is on unless somebody turned it off."""
    is_on = True
    for place in map(Path, places):
        files = sorted(place.glob("*.conf")) if place.is_dir() else [place]
        for file in files:
            parser = ConfigParser(strict=False, interpolation=None)
            try:
                parser.read(file, encoding="utf-8")
                is_on = parser.getboolean("Login", "RemoveIPC", fallback=is_on)
            except (Error, ValueError, OSError):
                continue
    return is_on

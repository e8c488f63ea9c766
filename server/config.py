"""The server's settings: read once, checked, frozen.

Purpose: command line over environment over file over default; a wrong value names its key, its
unit and what is valid. Must not know: who uses the settings. Runs in: the main process, at start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from protocol import endpoint as endpoints
from protocol import traceparent
from protocol.endpoint import Endpoint
from protocol.errors import ConfigError, ErrorCode
from protocol.logline import FORMATS
from protocol.quotas import QuotaChange
from server import quotaspec, tierspec
from server.gathering import COMMAND_LINE, Gathered, gather
from server.gathering import unknown_variables as unknown_variables
from server.schema import AT_EXIT as AT_EXIT
from server.schema import (
    INCOMPLETE_S,
    MAX_ARENA_BYTES,
    MAX_EXTENT_BYTES,
    MAX_INCOMPLETE_S,
    MAX_TTL_S,
    MIN_EXTENT_BYTES,
    MIN_INCOMPLETE_S,
    MIN_TTL_S,
    PROMOTE_S,
    SETTINGS,
)
from server.schema import LOG_LEVELS as LOG_LEVELS
from server.schema import MAX_PROMOTE_S as MAX_PROMOTE_S
from server.schema import MIN_ARENA_BYTES as MIN_ARENA_BYTES
from server.schema import MIN_PROMOTE_S as MIN_PROMOTE_S
from server.sizes import GIB as GIB
from server.sizes import KIB as KIB
from server.sizes import MIB as MIB
from server.sizes import format_size as format_size
from server.sizes import invalid as _invalid
from server.sizes import parse_size as parse_size
from server.sizes import size_between
from server.tierspec import TierSpec
from server.web import listen

DERIVED_EXTENT_MIN_BYTES = 64 * MIB
EXTENTS_PER_ARENA = 16
LEAST_EXTENTS_PER_ARENA = 4
FILE_KEYS = tuple(key for key, setting in SETTINGS.items() if setting.is_in_file)
KEYS = tuple(SETTINGS)

_TIME = re.compile(r"([0-9]{1,9})\s*([smhd]?)")
_TIME_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")


@dataclass(frozen=True)
class ServerConfig:
    """All settings of ``launch``.

    Attributes:
        endpoint: where engines connect.
        runtime_dir: folder of sockets that the endpoint does not name.
        arena_dir: folder of the arena, or empty for one in shared memory named after user and
            endpoint.
        arena_at_exit: whether the arena stays for the next server, ``keep`` or ``remove``.
        arena_bytes: budget of the arena, or 0 for a share of what is free.
        extent_bytes: length of one extent file, or 0 for one derived from the arena.
        incomplete_timeout_s: age from which a chunk without all its shards is evicted first.
        tiers: below L1, the first is asked first.
        promote_deadline_s: longest that bytes of lower tiers are waited for, for one request.
        namespace_ttl_s: how long a namespace without engines stays that nobody uses, 0 for ever.
        quotas: of tenants, from the start on.
        group: name or number of the group whose members may connect, or empty for nobody but this
            user.
        http: ``HOST:PORT`` where pages and metrics are served, or empty for nowhere.
        log_level: of the server's log on stderr.
        log_format: of its lines, ``text`` or ``json``.
        traces: share of traces whose messages become spans.
        cgroup_root: where control groups are mounted.
    """

    endpoint: Endpoint
    runtime_dir: str
    arena_dir: str = ""
    arena_at_exit: str = AT_EXIT[0]
    arena_bytes: int = 0
    extent_bytes: int = 0
    incomplete_timeout_s: float = INCOMPLETE_S
    tiers: tuple[TierSpec, ...] = ()
    promote_deadline_s: float = PROMOTE_S
    namespace_ttl_s: float = 0.0
    quotas: tuple[QuotaChange, ...] = ()
    group: str = ""
    http: str = ""
    log_level: str = "WARNING"
    log_format: str = FORMATS[0]
    traces: float = 0.0
    cgroup_root: str = "/sys/fs/cgroup"


def read(
    options: Mapping[str, str | None], environ: Mapping[str, str], uid: int | None = None
) -> ServerConfig:
    """Reads and checks every setting.

    Args:
        options: from the command line by key (``endpoint``, ``arena-dir``, ``arena-at-exit``,
            ``l1-size``, ``extent-size``, ``incomplete-timeout``, ``l2``, ``promote-deadline``,
            ``namespace-ttl``, ``quota``, ``group``, ``http``, ``log-level``, ``log-format``,
            ``traces``, ``cgroup-root``, ``config``: a file with more of them); None for what was
            not given.
        environ: ``KVKEEP_`` and the key in capitals, e.g. ``KVKEEP_L1_SIZE``.
        uid: user whose default endpoint is meant; this process's by default.

    Returns:
        The settings.

    Raises:
        ConfigError: INVALID_URL or INVALID_CONFIG.
    """
    return parse(gather(options, environ), environ, uid)


def parse(gathered: Gathered, environ: Mapping[str, str], uid: int | None = None) -> ServerConfig:
    """Checks settings that were gathered before.

    Args:
        gathered: texts and where they came from.
        environ: environment variables, for the default endpoint.
        uid: user whose default endpoint is meant; this process's by default.

    Returns:
        The settings.

    Raises:
        ConfigError: INVALID_URL or INVALID_CONFIG; it says where the wrong one came from.
    """
    given = {key: one.text for key, one in gathered.values.items()}
    try:
        return _parse(given, environ, os.geteuid() if uid is None else uid)
    except ConfigError as error:
        # Who typed no option looks for the mistake in vain on the command line.
        key = str(error.detail.get("key", "endpoint"))
        found = gathered.values.get(key)
        source = COMMAND_LINE if found is None else found.source
        names = [] if source == COMMAND_LINE else [source]
        if error.code == ErrorCode.INVALID_URL and source != variable(key):
            names.append(key)  # others begin with it
        message = ": ".join([*names, error.message])
        raise ConfigError(error.code, message, **error.detail) from error


def _parse(given: Mapping[str, str], environ: Mapping[str, str], user: int) -> ServerConfig:
    def setting(key: str) -> str:
        return given.get(key, "")

    # An endpoint that is given but empty is a mistake, not a wish for the default (B46).
    url = given.get("endpoint")
    if url is None:
        url = endpoints.default_url(environ, user, is_usable_folder)
    arena_bytes = _size("l1-size", setting("l1-size"), MIN_ARENA_BYTES, MAX_ARENA_BYTES)
    extent_bytes = _size("extent-size", setting("extent-size"), MIN_EXTENT_BYTES, MAX_EXTENT_BYTES)
    if extent_bytes % 4096:
        raise _invalid("extent-size", str(extent_bytes), "a multiple of 4096 bytes")
    return ServerConfig(
        endpoint=endpoints.parse(url),
        runtime_dir=endpoints.runtime_dir(environ, user, is_usable_folder),
        arena_dir=_folder("arena-dir", setting("arena-dir")),
        arena_at_exit=_word("arena-at-exit", setting("arena-at-exit"), AT_EXIT),
        arena_bytes=arena_bytes,
        extent_bytes=extent_bytes,
        incomplete_timeout_s=_seconds(
            "incomplete-timeout",
            setting("incomplete-timeout"),
            (MIN_INCOMPLETE_S, MAX_INCOMPLETE_S, INCOMPLETE_S),
        ),
        tiers=tierspec.parse_all(setting("l2").split()),
        promote_deadline_s=_seconds(
            "promote-deadline",
            setting("promote-deadline").strip().removesuffix("s"),
            (MIN_PROMOTE_S, MAX_PROMOTE_S, PROMOTE_S),
        ),
        namespace_ttl_s=_ttl(setting("namespace-ttl")),
        quotas=quotaspec.parse_all(setting("quota").split()),
        group=setting("group").strip(),
        http=_http(setting("http")),
        log_level=_log_level(setting("log-level")),
        log_format=_word("log-format", setting("log-format"), FORMATS),
        traces=_ratio(setting("traces")),
        cgroup_root=_folder("cgroup-root", setting("cgroup-root")) or "/sys/fs/cgroup",
    )


def variable(key: str) -> str:
    """The environment variable of a setting.

    Args:
        key: such as ``l1-size``.

    Returns:
        Such as ``KVKEEP_L1_SIZE``.
    """
    return SETTINGS[key].variable


def is_usable_folder(path: str) -> bool:
    """Whether this user can make files in a folder."""
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _size(key: str, text: str, min_bytes: int, max_bytes: int) -> int:
    if not text.strip():
        return 0
    return size_between(key, text, min_bytes, max_bytes)


def _seconds(key: str, text: str, bounds: tuple[float, float, float]) -> float:
    least, most, default = bounds
    if not text.strip():
        return default
    match = _SECONDS.fullmatch(text.strip())
    seconds = float(match[0]) if match is not None else -1.0
    if not least <= seconds <= most:
        raise _invalid(key, text, f"{least} to {most:.0f} seconds")
    return seconds


def _ttl(text: str) -> float:
    if not text.strip():
        return 0.0
    match = _TIME.fullmatch(text.strip().lower())
    seconds = int(match[1]) * _TIME_UNITS[match[2]] if match is not None else -1
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise _invalid("namespace-ttl", text, "seconds, or a number with m, h or d, 1m to 366d")
    return float(seconds)


def _folder(key: str, text: str) -> str:
    path = text.strip()
    if path and not path.startswith("/"):
        raise _invalid(key, text, "an absolute path")
    return os.path.normpath(path) if path else ""


def _word(key: str, text: str, words: tuple[str, ...]) -> str:
    """One of some words; the first where none is given."""
    wanted = text.strip().lower() or words[0]
    if wanted not in words:
        raise _invalid(key, text, " or ".join(words))
    return wanted


def _ratio(text: str) -> float:
    try:
        return traceparent.parse_ratio(text)
    except ValueError:
        raise _invalid("traces", text, "a number from 0 to 1") from None


def _http(text: str) -> str:
    if not text.strip():
        return ""
    try:
        found = listen.parse(text)
    except ValueError:
        found = None
    # The kernel would choose another one each time the web process is started.
    if found is None or not found.port:
        valid = "[HOST:]PORT with a port from 1 to 65535, as in 9177, 0.0.0.0:9177 or [::1]:9177"
        raise _invalid("http", text, valid)
    return found.netloc()


def _log_level(text: str) -> str:
    level = text.strip().upper() or "WARNING"
    if level not in LOG_LEVELS:
        raise _invalid("log-level", text, f"{', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}")
    return level


def derive_arena_bytes(free_bytes: int, folder_free_bytes: int) -> int:
    """Size of the arena when nobody says.

    Args:
        free_bytes: what machine and control group leave.
        folder_free_bytes: what the arena's file system leaves.

    Returns:
        Half of the first, at most 90 % of the second, in whole MiB.
    """
    return min(free_bytes // 2, folder_free_bytes * 9 // 10) // MIB * MIB


def derive_extent_bytes(arena_bytes: int, extent_bytes: int) -> int:
    """Length of extent files, checked against the arena.

    Args:
        arena_bytes: budget.
        extent_bytes: as set, or 0.

    Returns:
        The set length, or the power of two next below a sixteenth of the arena, within 64 MiB
        and 1 GiB; in an arena below 256 MiB, next below a quarter of it.

    Raises:
        ConfigError: INVALID_CONFIG when the set length does not fit into the arena.
    """
    if extent_bytes > arena_bytes:
        valid = f"at most the arena's {format_size(arena_bytes)}"
        raise _invalid("extent-size", format_size(extent_bytes), valid)
    if extent_bytes:
        return extent_bytes
    least = min(DERIVED_EXTENT_MIN_BYTES, _power_below(arena_bytes // LEAST_EXTENTS_PER_ARENA))
    return min(MAX_EXTENT_BYTES, max(least, _power_below(arena_bytes // EXTENTS_PER_ARENA)))


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)

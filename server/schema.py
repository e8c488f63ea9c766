"""Every setting of the server, once: its name, unit, range, default and purpose.

Purpose: what is read (``config``), what ``launch --help`` says and the reference in
docs/configuration.md come from here, so that they cannot differ. Must not know: where values come
from, who uses them. Runs in: the main process, at start; the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from protocol.logline import FORMATS
from server.sizes import GIB, KIB, MIB

MIN_ARENA_BYTES, MAX_ARENA_BYTES = MIB, 1 << 44
MIN_EXTENT_BYTES, MAX_EXTENT_BYTES = 64 * KIB, GIB
MIN_INCOMPLETE_S, MAX_INCOMPLETE_S, INCOMPLETE_S = 0.1, 86_400.0, 60.0
MIN_TTL_S, MAX_TTL_S = 60, 366 * 86_400
MIN_PROMOTE_S, MAX_PROMOTE_S, PROMOTE_S = 0.01, 3600.0, 1.0
AT_EXIT = ("keep", "remove")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
ENVIRONMENT_PREFIX = "KVKEEP_"

_LIKENESS = 0.6


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: as on the command line without its dashes, and as in the file.
        metavar: what stands for its value in the help.
        unit: of its value, for people.
        valid: what it may be.
        default: what holds where nobody says.
        purpose: what it is for; a clause, no sentence.
        is_shown: whether the help has it.
        is_repeated: whether it may be given more than once; elsewhere its values stand in one
            text, with spaces between them.
        is_in_file: whether the settings file may hold it.
    """

    key: str
    metavar: str
    unit: str
    valid: str
    default: str
    purpose: str
    is_shown: bool = True
    is_repeated: bool = False
    is_in_file: bool = True

    @property
    def variable(self) -> str:
        """Its environment variable, such as ``KVKEEP_L1_SIZE``."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace("-", "_")

    @property
    def help(self) -> str:
        """What the command line says of it."""
        return f"{self.purpose}: {self.valid}.  [default: {self.default}]"


def _short(num_bytes: int) -> str:
    for unit, size in (("T", 1 << 40), ("G", GIB), ("M", MIB), ("K", KIB)):
        if num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


def _words(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


_ALL = (
    Setting(
        "endpoint",
        "URL",
        "a URL",
        "ipc:///absolute/path, or tcp://localhost:PORT",
        "kvkeep.sock in a folder of this user's own",
        "Where engines connect",
    ),
    Setting(
        "l1-size",
        "SIZE",
        "bytes",
        f"bytes, or 512M, 20G, 1.5T; {_short(MIN_ARENA_BYTES)} to {_short(MAX_ARENA_BYTES)}, and "
        "no more than is free",
        "half of what is free",
        "Memory for the cache",
    ),
    Setting(
        "arena-dir",
        "PATH",
        "a path",
        "an absolute path, on a tmpfs",
        "one in /dev/shm",
        "Folder for the cache's files",
    ),
    Setting(
        "arena-at-exit",
        "WHAT",
        "a word",
        f"{_words(AT_EXIT)}",
        AT_EXIT[0],
        "Whether the next server takes the cache over, or its memory is free at once",
    ),
    Setting(
        "extent-size",
        "SIZE",
        "bytes",
        f"{_short(MIN_EXTENT_BYTES)} to {_short(MAX_EXTENT_BYTES)}, a multiple of 4096 bytes, not "
        "above the cache's size",
        "a sixteenth of the cache, 64M to 1G; of a cache below 256M, a quarter",
        "Length of one of these files",
    ),
    Setting(
        "incomplete-timeout",
        "SECONDS",
        "seconds",
        f"{MIN_INCOMPLETE_S:g} to {MAX_INCOMPLETE_S:g}",
        f"{INCOMPLETE_S:g}",
        "After how long a chunk that some rank has not saved makes room first",
        is_shown=False,
    ),
    Setting(
        "l2",
        "URL",
        "a URL",
        "disk:/path?size=200G, mooncake://master:50051, valkey://host:6379 or s3://bucket/prefix; "
        "its options follow a question mark (docs/operations.md lists them); 8 at most",
        "none",
        "A tier below the cache, asked in the order given",
        is_repeated=True,
    ),
    Setting(
        "promote-deadline",
        "SECONDS",
        "seconds",
        f"{MIN_PROMOTE_S:g} to {MAX_PROMOTE_S:g}",
        f"{PROMOTE_S:g}",
        "Longest that a request waits for bytes of lower tiers",
    ),
    Setting(
        "namespace-ttl",
        "TIME",
        "seconds",
        "seconds, or a number with m, h or d, from 1m to 366d",
        "never, unless others need the room",
        "After how long what no engine uses any more is forgotten, in lower tiers too",
    ),
    Setting(
        "quota",
        "TENANT=SIZE[:LIMIT][@TIER]",
        "bytes",
        "namespace/DIGITS or salt/DIGITS, as kvkeep quota list shows them, and what others leave "
        "it; after a colon the most it may have; after an @ the lower tier for which it holds",
        "none",
        "What a tenant keeps in the cache whatever others store",
        is_repeated=True,
    ),
    Setting(
        "group",
        "NAME",
        "a name",
        "a name or a number",
        "this user alone",
        "Group whose members may connect as well",
    ),
    Setting(
        "http",
        "[HOST:]PORT",
        "an address",
        "a port from 1 on, alone or after a name or address of this machine; 127.0.0.1 without one",
        "off",
        "Where to serve /metrics, /healthz, /readyz and a page for people",
    ),
    Setting(
        "log-level",
        "LEVEL",
        "a word",
        _words(LOG_LEVELS),
        "WARNING",
        "What the log on stderr has",
    ),
    Setting(
        "log-format",
        "FORMAT",
        "a word",
        _words(FORMATS),
        FORMATS[0],
        "How its lines look: for people, or each a JSON object for a collector",
    ),
    Setting(
        "traces",
        "RATIO",
        "a share",
        "a number from 0 to 1",
        "0",
        "Share of traced requests whose messages are sent as spans to OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    Setting(
        "cgroup-root",
        "PATH",
        "a path",
        "an absolute path",
        "/sys/fs/cgroup",
        "Where control groups are mounted",
        is_shown=False,
    ),
    Setting(
        "config",
        "PATH",
        "a path",
        "an absolute path",
        "none",
        "File with more of these options, a line  l1-size = 20G  for each",
        is_in_file=False,
    ),
)

SETTINGS: Mapping[str, Setting] = {setting.key: setting for setting in _ALL}
"""All of them by key, in the order in which they are shown."""


def nearest(name: str, known: Iterable[str]) -> str:
    """What somebody most likely meant.

    Args:
        name: that is none.
        known: all that there are.

    Returns:
        The most similar of these, or empty where none is similar.
    """
    folded = {one.lower().replace("_", "-"): one for one in known}
    found = get_close_matches(name.lower().replace("_", "-"), folded, 1, _LIKENESS)
    return folded[found[0]] if found else ""

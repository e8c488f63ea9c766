"""What people coming from LMCache write, in the words of this server.

Purpose: flags of LMCache's server and keys of its configuration file become settings here; each
that has no counterpart is named in one line, so that nobody believes it to work. Must not know:
whether a setting is right, who uses it. Runs in: the main process, at start; the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from protocol import flatyaml
from protocol.errors import ConfigError, ErrorCode
from server import configfile
from server.sizes import GIB, invalid

FILE_VARIABLE = "LMCACHE_CONFIG_FILE"
DEFAULT_HOST, DEFAULT_PORT = "localhost", 5555
FOLDER = "kvkeep"
"""Below LMCache's own folder on a disk, whose files are none of ours."""

FLAGS = ("host", "port", "chunk-size", "l1-size-gb", "eviction-policy", "max-workers")
"""Flags of LMCache's server that ``launch`` takes, too."""

_FINE = re.compile(r"[0-9]{1,6}\.[0-9]{4,12}")
"""More digits than a size of ours may have."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_CHUNKS = "engines decide, each by TRTLLM_KVKEEP_CHUNK_TOKENS"
_MEMORY = "the cache in memory is always there"
WITHOUT_COUNTERPART: Mapping[str, str] = {
    "chunk-size": _CHUNKS,
    "eviction-policy": "what was used least recently makes room first, ends of prompts before "
    "their beginnings",
    "max-workers": "one thread answers; each tier has threads of its own (concurrency= of --l2)",
    "chunk_size": _CHUNKS,
    "local_cpu": _MEMORY,
    "remote_serde": "bytes are kept as they are",
    "save_decode_cache": "what was decoded is saved as well",
    "enable_blending": "only what continues a prompt from its start is found",
    "enable_p2p": "nodes share through a tier that all of them can reach",
    "nixl_role": "prefill and decode on different nodes share through a tier",
}
"""Why some of them mean nothing here; of the others it is said that they do not."""


@dataclass(frozen=True)
class Found:
    """One setting.

    Attributes:
        text: as this server takes it.
        source: the key it came from, and where that stands.
    """

    text: str
    source: str


@dataclass
class Foreign:
    """What was understood.

    Attributes:
        values: settings by key.
        notes: a line for each name without a counterpart.
    """

    values: dict[str, Found] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def of_flags(given: Mapping[str, str | None]) -> tuple[dict[str, str], list[str]]:
    """Flags of LMCache's server.

    Args:
        given: by name, as in ``FLAGS``; None for what was not given.

    Returns:
        Settings by key, and a line for each flag without a counterpart.

    Raises:
        ConfigError: INVALID_CONFIG, for a host that is not this machine.
    """
    values: dict[str, str] = {}
    host, port, size = given.get("host"), given.get("port"), given.get("l1-size-gb")
    if host is not None and host not in _LOOPBACK:
        valid = f"{', '.join(_LOOPBACK[:-1])}: engines are on this machine, and share its memory"
        raise invalid("host", host, valid)
    if host is not None or port is not None:
        name = f"[{host}]" if host == "::1" else host or DEFAULT_HOST
        values["endpoint"] = f"tcp://{name}:{port or DEFAULT_PORT}"
    if size is not None:
        values["l1-size"] = _size(size)
    notes = [
        f"--{name} has no counterpart here: {WITHOUT_COUNTERPART[name]}"
        for name in FLAGS
        if given.get(name) is not None and name in WITHOUT_COUNTERPART
    ]
    return values, notes


def of_environment(environ: Mapping[str, str]) -> Foreign:
    """The file that ``LMCACHE_CONFIG_FILE`` names.

    Args:
        environ: environment variables.

    Returns:
        Its settings; none where no file is named: an empty value names none.

    Raises:
        ConfigError: INVALID_CONFIG: it cannot be read.
    """
    path = environ.get(FILE_VARIABLE, "")
    if not path.strip():
        return Foreign()
    try:
        values = flatyaml.scalars(configfile.text(path))
    except ConfigError as error:
        what = error.message.removeprefix("config=")
        raise ConfigError(
            ErrorCode.INVALID_CONFIG, f"{FILE_VARIABLE}={what}", key=FILE_VARIABLE
        ) from error
    return of_file(path, {key: value for key, value in values.items() if value is not None})


def of_file(path: str, given: Mapping[str, str]) -> Foreign:
    """Keys of LMCache's configuration file.

    Args:
        path: of the file, for sources.
        given: key to value, those that have one.

    Returns:
        Settings, and a line for what has no counterpart.
    """
    reader = _Reader(path)
    rest = dict(given)
    reader.memory(rest.pop("max_local_cpu_size", None), rest.pop("local_cpu", None))
    reader.disk(rest.pop("local_disk", None), rest.pop("max_local_disk_size", None))
    reader.server(rest.pop("server_url", None))
    reader.remote(rest.pop("remote_url", None))
    for key in sorted(WITHOUT_COUNTERPART.keys() & rest.keys()):
        reader.note(key, WITHOUT_COUNTERPART[key])
        del rest[key]
    if rest:
        reader.notes.append(
            f"{reader.where(', '.join(sorted(rest)))}: no counterpart here, and no effect"
        )
    return reader.result()


class _Reader:
    """Turns one key after the other into settings."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._values: dict[str, Found] = {}
        self._tiers: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def where(self, key: str) -> str:
        """How a key is named."""
        return f"{key} of {self._path} ({FILE_VARIABLE})"

    def note(self, key: str, why: str) -> None:
        """Says that a key means nothing."""
        self.notes.append(f"{self.where(key)} has no counterpart here: {why}")

    def memory(self, size: str | None, is_used: str | None) -> None:
        """``max_local_cpu_size`` in GiB; ``local_cpu``."""
        if size is not None:
            self._values["l1-size"] = Found(_size(size), self.where("max_local_cpu_size"))
        if is_used is not None and is_used.lower() in ("false", "no", "off"):
            self.note("local_cpu", _MEMORY)

    def disk(self, place: str | None, size: str | None) -> None:
        """``local_disk``, a path or ``file://``, and ``max_local_disk_size`` in GiB."""
        if place is None:
            if size is not None:
                self.note("max_local_disk_size", "there is no local_disk")
            return
        folder = place.removeprefix("file://").rstrip("/")
        if not folder.startswith("/"):
            self.note("local_disk", "a tier on a disk has an absolute path")
        elif size is None or not size.strip("0."):
            self.note("local_disk", "a tier on a disk needs a size, max_local_disk_size")
        else:
            url = f"disk:{quote(folder)}/{FOLDER}?size={_size(size)}"
            self._tiers.append((url, "local_disk"))

    def server(self, url: str | None) -> None:
        """``server_url``, which engines read as well."""
        if url is not None and not self._is_own(url, "server_url"):
            self.note("server_url", "engines find this server by ipc:// or tcp://")

    def remote(self, url: str | None) -> None:
        """``remote_url``: this server, for engines, or a store below it."""
        if url is None or self._is_own(url, "remote_url"):
            return
        kind, is_url, rest = url.partition("://")
        authority = rest.partition("/")[0]
        if "@" in url:
            self.note("remote_url", "--l2 takes credentials from a file (credentials=)")
        elif kind in ("redis", "rediss", "valkey") and authority:
            port = "" if _has_port(authority) else ":6379"
            tls = "?tls=yes" if kind == "rediss" else ""
            self._tiers.append((f"valkey://{authority}{port}{tls}", "remote_url"))
        elif kind == "mooncakestore" and authority:
            self._tiers.append((f"mooncake://{authority}", "remote_url"))
        elif kind == "lm":
            self.note("remote_url", "this server takes the place of LMCache's")
        else:
            shown = f"{kind[:20]}://" if is_url else "that"
            self.note("remote_url", f"no tier can be made of {shown}; see --l2")

    def _is_own(self, url: str, key: str) -> bool:
        """Whether engines find this server by a URL; the first that they look at counts."""
        if url.startswith(("ipc://", "tcp://")):
            self._values.setdefault("endpoint", Found(url, self.where(key)))
        return url.startswith(("ipc://", "tcp://", "inproc://"))

    def result(self) -> Foreign:
        """All of it."""
        if self._tiers:
            urls = " ".join(url for url, _ in self._tiers)
            source = self.where(" and ".join(key for _, key in self._tiers))
            self._values["l2"] = Found(urls, source)
        return Foreign(self._values, tuple(self.notes))


def _size(gib: str) -> str:
    """A number of GiB as a size; what is none is left to the setting's own check."""
    text = gib.strip()
    if _FINE.fullmatch(text):
        return str(int(float(text) * GIB))
    return f"{text}G"


def _has_port(authority: str) -> bool:
    try:
        return urlsplit(f"//{authority}").port is not None
    except ValueError:
        return True  # the tier's own check says what is wrong with it

"""Where the server is, and which setting said so.

Must not know: sockets, anything else that is configured. Runs in: the threads that construct
scheduler and worker.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol import endpoint, flatyaml
from protocol.errors import ConfigError, ErrorCode

ENV_SERVER_URL: Final = "TRTLLM_KVKEEP_SERVER_URL"
"""Reaches spawned ranks, as every ``TRTLLM*`` variable does. Source: host contract §2."""
ENV_LMCACHE_URL: Final = "LMCACHE_SERVER_URL"
ENV_LMCACHE_FILE: Final = "LMCACHE_CONFIG_FILE"

FILE_KEYS: Final = ("server_url", "remote_url")
"""Keys of an LMCache configuration file that name a server, in order of precedence."""

STORES: Final = ("redis", "rediss", "redis-sentinel", "valkey", "mooncakestore", "s3", "fs")
"""Schemes of a ``remote_url`` that name no server but a store: the server's to use, as a tier."""

EMBEDDED_URL: Final = "inproc://"
"""Embedded mode: no server to set up, the engine starts a private one."""

_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class ServerUrl:
    """Where the server is, and who said so.

    Attributes:
        url: in normal form; ``inproc://`` for a server that the engine starts for itself.
        source: the setting it came from, for the log and for errors.
    """

    url: str
    source: str

    @property
    def is_embedded(self) -> bool:
        """Whether the engine starts a server of its own."""
        return self.url == EMBEDDED_URL


def resolve_server_url(
    llm_args: Any, environ: Mapping[str, str], own_default: str = ""
) -> ServerUrl:
    """Finds the server's URL: connector config, environment, file, default, in this order.

    A setting that is there but empty is wrong, not absent (B46).

    Args:
        llm_args: ``kv_connector_config.server_url`` is read if it exists (host contract §2).
        environ: environment variables.
        own_default: of a connector class that has one. It comes before what LMCache's settings
            say, which for such a class name something else than the server.

    Returns:
        The first one set, in normal form.

    Raises:
        ConfigError: INVALID_URL naming the setting and the valid forms; INVALID_CONFIG for a
            file that cannot be read.
    """
    configured = getattr(getattr(llm_args, "kv_connector_config", None), "server_url", None)
    if configured is not None:
        return check_url(str(configured), "kv_connector_config.server_url")
    if ENV_SERVER_URL in environ:
        return check_url(environ[ENV_SERVER_URL], ENV_SERVER_URL)
    if own_default:
        return check_url(own_default, "the connector class")
    if ENV_LMCACHE_URL in environ:
        return check_url(environ[ENV_LMCACHE_URL], ENV_LMCACHE_URL)
    if environ.get(ENV_LMCACHE_FILE, "").strip():
        found = _url_of_file(environ[ENV_LMCACHE_FILE])
        if found is not None:
            return found
    default = endpoint.default_url(environ, os.geteuid(), _is_usable_folder)
    return check_url(default, "default")


def check_url(url: str, source: str) -> ServerUrl:
    """A URL that an engine may be given, in normal form.

    Args:
        url: as a person or a file gave it.
        source: the setting it came from.

    Raises:
        ConfigError: INVALID_URL naming the setting and the valid forms.
    """
    if url.strip() == EMBEDDED_URL:
        return ServerUrl(EMBEDDED_URL, source)
    try:
        return ServerUrl(endpoint.parse(url).url, source)
    except ConfigError as error:
        text = f"{source}: {error.message}, or {EMBEDDED_URL} for a server of the engine's own"
        raise ConfigError(error.code, text, **error.detail) from error


def _url_of_file(path: str) -> ServerUrl | None:
    values = read_flat_yaml(read_file(path, f"{ENV_LMCACHE_FILE} (file {path})"))
    for key in FILE_KEYS:
        kind = str(values.get(key)).partition("://")[0]
        if values.get(key) is not None and not (key == "remote_url" and kind in STORES):
            return check_url(str(values[key]), f"key {key} of {path} ({ENV_LMCACHE_FILE})")
    return None


def read_flat_yaml(
    text: str, load: Callable[[str], Any] = importlib.import_module
) -> dict[str, Any]:
    """Top-level scalars of a YAML file.

    With PyYAML at hand it reads the file; without, lines ``key: value`` without indentation are
    read, quotes and comments taken off, everything else skipped.

    Args:
        text: the file.
        load: imports a module by name.

    Returns:
        Key to value; None for ``null``, ``~`` and nothing.
    """
    try:
        yaml = load("yaml")
    except ImportError:
        return dict(flatyaml.scalars(text))
    try:
        parsed = yaml.safe_load(text)
    except Exception:  # noqa: BLE001 - other keys of that file are not ours; besides YAMLError it
        # raises ValueError for days that no month has, and RecursionError.
        return dict(flatyaml.scalars(text))
    return {str(k): v for k, v in parsed.items()} if isinstance(parsed, dict) else {}


def read_file(path: str, source: str) -> str:
    """A small text file that a setting names.

    Args:
        path: of the file.
        source: the setting, for the error.

    Raises:
        ConfigError: INVALID_CONFIG: it cannot be read, is no regular file (a pipe would keep the
            engine waiting), or is longer than 1 MiB.
    """
    try:
        if not Path(path).is_file():
            os.stat(path)
            raise ValueError("it is no regular file")
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"longer than {_MAX_FILE_BYTES} bytes")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG, f"{source}: cannot be read: {error}", key=source
        ) from error


def _is_usable_folder(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)

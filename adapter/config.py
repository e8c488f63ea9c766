"""Settings of the adapter: which server, and what the operator knows that files do not say.

Purpose: read everything once, when the engine constructs the connector, and refuse what is wrong
with the setting named. Must not know: sockets, the pool, the host's classes. Runs in: the threads
that construct scheduler and worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from adapter import embedded, sharing, trtllm_api
from adapter.loadmode import AUTO, CHOICES
from adapter.serverurl import (
    ENV_SERVER_URL,
    ServerUrl,
    check_url,
    read_file,
    resolve_server_url,
)
from protocol import logline, traceparent
from protocol.errors import ConfigError, ErrorCode
from protocol.limits import MAX_WAIT_MS

__all__ = [
    "ConnectorConfig",
    "ServerUrl",
    "Settings",
    "make_kv_connector_config",
    "read_lora_digests",
    "read_settings",
    "resolve_server_url",
    "unknown_variables",
]

ENV_WEIGHTS_EPOCH: Final = "TRTLLM_KVKEEP_WEIGHTS_EPOCH"
ENV_LORA_DIGESTS: Final = "TRTLLM_KVKEEP_LORA_DIGESTS"
ENV_CHUNK_TOKENS: Final = "TRTLLM_KVKEEP_CHUNK_TOKENS"
ENV_HELD_PERCENT: Final = "TRTLLM_KVKEEP_HELD_PAGES_PERCENT"
ENV_BUDGET_MS: Final = "TRTLLM_KVKEEP_QUERY_BUDGET_MS"
ENV_LOAD_MODE: Final = "TRTLLM_KVKEEP_LOAD_MODE"
ENV_STAGING: Final = "TRTLLM_KVKEEP_STAGING"

_PREFIX: Final = "TRTLLM_KVKEEP_"
_OWN: Final = frozenset(
    {
        ENV_SERVER_URL,
        ENV_WEIGHTS_EPOCH,
        ENV_LORA_DIGESTS,
        ENV_CHUNK_TOKENS,
        ENV_HELD_PERCENT,
        ENV_BUDGET_MS,
        ENV_LOAD_MODE,
        ENV_STAGING,
    }
)

CONNECTOR_MODULE: Final = "adapter.connector"
SCHEDULER_CLASS: Final = "KvkeepConnectorScheduler"
WORKER_CLASS: Final = "KvkeepConnectorWorker"

_MAX_CHUNK_TOKENS: Final = 1 << 24


@dataclass(frozen=True)
class Settings:
    """Everything the adapter was told.

    Attributes:
        server: the server's URL and where it came from.
        weights_epoch: operator's word for "same files, other weights"; may be empty.
        lora_digests: LoRA task id to content digest.
        chunk_tokens: tokens stored under one key; 0 means one block.
        held_percent: share of the pool that finished requests may hold for saves, in percent.
        query_budget_s: longest wait of all queries of one executor iteration together, seconds.
        load_mode: one of ``loadmode.CHOICES``.
        staging: one of ``sharing.CHOICES``.
        traces: share of requests that is traced.
        logs_json: whether lines are objects, on stderr.
    """

    server: ServerUrl
    weights_epoch: str = ""
    lora_digests: Mapping[int, bytes] = field(default_factory=dict)
    chunk_tokens: int = 0
    held_percent: int = 5
    query_budget_s: float = 0.02
    load_mode: str = AUTO
    staging: str = sharing.AUTO
    traces: float = 0.0
    logs_json: bool = False


@dataclass(frozen=True)
class ConnectorConfig:
    """Stands in for the host's ``KvCacheConnectorConfig`` where no host is installed.

    Source: host contract §2, the five fields of late E2.
    """

    connector: str | None = None
    connector_module: str | None = CONNECTOR_MODULE
    connector_scheduler_class: str | None = SCHEDULER_CLASS
    connector_worker_class: str | None = WORKER_CLASS
    server_url: str | None = None


def make_kv_connector_config(server_url: str | None = None) -> Any:
    """What a user passes to the engine as ``kv_connector_config``.

    Args:
        server_url: the server; None leaves it to the environment.

    Returns:
        The host's own config object, or an equivalent one without a host.

    Raises:
        ConfigError: INVALID_URL, or INVALID_CONFIG when this host's config has no room for a URL.
    """
    if server_url is not None:
        check_url(server_url, "server_url")
    names: dict[str, str] = {
        "connector_module": CONNECTOR_MODULE,
        "connector_scheduler_class": SCHEDULER_CLASS,
        "connector_worker_class": WORKER_CLASS,
    }
    config_class = trtllm_api.connector_config_class()
    if config_class is None:
        return ConnectorConfig(server_url=server_url)
    if server_url is not None:
        if "server_url" not in getattr(config_class, "model_fields", {}):
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"this host's KvCacheConnectorConfig has no server_url; set {ENV_SERVER_URL}",
                key="server_url",
            )
        names["server_url"] = server_url
    return config_class(**names)


def read_settings(llm_args: Any, environ: Mapping[str, str], own_default: str = "") -> Settings:
    """Reads all settings.

    Args:
        llm_args: the engine's arguments.
        environ: environment variables.
        own_default: URL of a connector class that has one.

    Returns:
        The settings.

    Raises:
        ConfigError: naming the setting, its unit and the valid range.
    """
    return Settings(
        server=resolve_server_url(llm_args, environ, own_default),
        weights_epoch=_text(environ, ENV_WEIGHTS_EPOCH, 512),
        lora_digests=read_lora_digests(environ.get(ENV_LORA_DIGESTS)),
        chunk_tokens=_integer(environ, ENV_CHUNK_TOKENS, 0, 1, _MAX_CHUNK_TOKENS, "tokens"),
        held_percent=_integer(environ, ENV_HELD_PERCENT, 5, 0, 100, "percent"),
        query_budget_s=_integer(environ, ENV_BUDGET_MS, 20, 1, MAX_WAIT_MS, "milliseconds") / 1000,
        load_mode=_choice(environ, ENV_LOAD_MODE, AUTO, CHOICES),
        staging=_choice(environ, ENV_STAGING, sharing.AUTO, sharing.CHOICES),
        traces=_ratio(environ),
        logs_json=_choice(environ, logline.ENV_FORMAT, logline.FORMATS[0], logline.FORMATS)
        == logline.FORMATS[1],
    )


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: a slip that would go unnoticed.

    Those of a private server are left to it: it names them itself.

    Args:
        environ: environment variables.

    Returns:
        Names, sorted.
    """
    return sorted(
        name
        for name in environ
        if name.startswith(_PREFIX)
        and not name.startswith(embedded.SETTINGS_PREFIX)
        and name not in _OWN
    )


def read_lora_digests(text: str | None) -> dict[int, bytes]:
    """Content digests of LoRA adapters by task id.

    Args:
        text: JSON object ``{"1": "hex", …}``, or the path of a file with one; None for none.

    Returns:
        Task id to digest of 16 to 64 bytes.

    Raises:
        ConfigError: INVALID_CONFIG naming the setting.
    """
    if text is None:
        return {}
    source = ENV_LORA_DIGESTS
    if not text.lstrip().startswith("{"):
        source = f"{ENV_LORA_DIGESTS} (file {text})"
        text = read_file(text, source)
    try:
        raw = json.loads(text)
        digests = {int(number): bytes.fromhex(value) for number, value in raw.items()}
        if len(digests) < len(raw):
            raise ValueError("a task id is named twice")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{source}: expected a JSON object of LoRA task id to hex digest: {error}",
            key=ENV_LORA_DIGESTS,
        ) from error
    for number, digest in digests.items():
        if not 16 <= len(digest) <= 64:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"{source}: the digest of LoRA {number} has {len(digest)} bytes, valid are 16..64",
                key=ENV_LORA_DIGESTS,
            )
    return digests


def _integer(
    environ: Mapping[str, str], key: str, default: int, low: int, high: int, unit: str
) -> int:
    text = environ.get(key)
    if text is None:
        return default
    try:
        value = int(text.strip())
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{key}={text!r}: expected a whole number of {unit} within {low}..{high}",
            key=key,
        )
    return value


def _ratio(environ: Mapping[str, str]) -> float:
    text = environ.get(traceparent.ENV_RATIO, "")
    try:
        return traceparent.parse_ratio(text)
    except ValueError:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{traceparent.ENV_RATIO}={text!r}: expected a number from 0 to 1",
            key=traceparent.ENV_RATIO,
        ) from None


def _choice(environ: Mapping[str, str], key: str, default: str, choices: Sequence[str]) -> str:
    value = environ.get(key, default).strip().lower()
    if value not in choices:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{key}={environ[key]!r}: expected one of {', '.join(choices)}",
            key=key,
        )
    return value


def _text(environ: Mapping[str, str], key: str, max_chars: int) -> str:
    text = environ.get(key, "")
    if len(text) > max_chars:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{key} has {len(text)} characters, at most {max_chars} are valid",
            key=key,
        )
    return text

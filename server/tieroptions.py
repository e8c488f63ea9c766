"""What each kind of tier can be told, and how that is read.

Must not know: engines, the order of tiers. Runs in: the main process, at start.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from server.sizes import GIB, MIB, invalid, size_between

Value = str | int | bool
_Read = Callable[[str, str], Value]

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/=-]{1,200}")
_WORD = re.compile(r"[A-Za-z0-9_.:,-]{1,200}")
_WEB = re.compile(r"https?://[A-Za-z0-9._:\[\]/-]{1,300}")
_HANDSHAKE = "P2PHANDSHAKE"


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        read: makes its value of the key, for the error, and the text.
        default: its value when it is not given; None when it must be.
    """

    read: _Read
    default: Value | None


@dataclass(frozen=True)
class Kind:
    """One kind of tier.

    Attributes:
        example: of its URL, for errors.
        options: those of its own.
        has_credentials: whether ``credentials=`` means something.
    """

    example: str
    options: Mapping[str, Option]
    has_credentials: bool = True


def authorities(key: str, text: str, is_many: bool) -> str:
    """Checks ``host:port``, or several with commas between them.

    Args:
        key: for the error.
        text: without user and password.
        is_many: whether more than one may be given.

    Returns:
        The text, without a slash at its end.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    whole = text.removesuffix("/")
    all_parts = whole.split(",")
    for one in all_parts:
        host, _, port = one.rpartition(":")
        is_port = re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 1 << 16
        if not is_port or _HOST.fullmatch(host) is None or (len(all_parts) > 1 and not is_many):
            raise invalid(key, whole, "host:port" + (", or several with commas" * is_many))
    return whole


def bucket(key: str, text: str) -> str:
    """Checks the name of a bucket, and a prefix behind it.

    Args:
        key: for the error.
        text: ``bucket`` or ``bucket/prefix``.

    Returns:
        The text, without a slash at its end.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    whole = text.rstrip("/")
    name, slash, prefix = whole.partition("/")
    is_prefix = _PREFIX.fullmatch(prefix) is not None and "//" not in whole
    if _BUCKET.fullmatch(name) is None or (slash and not is_prefix):
        valid = "the name of a bucket (3 to 63 of a-z, 0-9, . and -), and perhaps /prefix"
        raise invalid(key, whole, valid)
    return whole


def secret_path(key: str, text: str) -> str:
    """Checks the path of a file; whether it can be read is seen when the tier is opened.

    Args:
        key: for the error.
        text: an absolute path.

    Raises:
        ConfigError: INVALID_CONFIG. The text is not shown: it may be the secret itself.
    """
    if not text.startswith("/") or "\0" in text:
        raise invalid(key, "...", "the absolute path of a file")
    return text


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint is on this machine.

    Args:
        endpoint: a URL.
    """
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _one_of(*words: str) -> _Read:
    def read(key: str, text: str) -> str:
        if text not in words:
            raise invalid(key, text, " or ".join(words))
        return text

    return read


def _flag(key: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise invalid(key, text, "yes or no")
    return text == "yes"


def _size(min_bytes: int, max_bytes: int) -> _Read:
    def read(key: str, text: str) -> int:
        return size_between(key, text, min_bytes, max_bytes)

    return read


def _number(least: int, most: int) -> _Read:
    def read(key: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise invalid(key, text, f"{least} to {most}")
        return int(text)

    return read


def _matching(pattern: re.Pattern[str], valid: str) -> _Read:
    def read(key: str, text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise invalid(key, text, valid)
        return text

    return read


def _web(key: str, text: str) -> str:
    if _WEB.fullmatch(text) is None:
        # Not shown: there may be a password in it.
        raise invalid(key, "...", "http://host:port or https://host, without user and password")
    return text


def _metadata(key: str, text: str) -> str:
    return text if text == _HANDSHAKE else _web(f"{key}: neither {_HANDSHAKE} nor a URL", text)


_path = _matching(re.compile(r"/[^\0]{1,500}"), "an absolute path")
_LEDGER = {"ledger": Option(_path, "")}
_word = _matching(_WORD, "letters, digits and . , : _ -")

KINDS: Mapping[str, Kind] = {
    "disk": Kind(
        "disk:/path?size=200G",
        {
            "size": Option(_size(16 * MIB, 1 << 50), None),
            "layout": Option(_one_of("slab", "files"), "slab"),
        },
        has_credentials=False,
    ),
    "mooncake": Kind(
        "mooncake://master:50051?protocol=tcp",
        {
            "protocol": Option(_one_of("tcp", "rdma"), "tcp"),
            "devices": Option(_word, ""),
            "local_hostname": Option(_word, ""),
            "segment": Option(_size(0, 1 << 44), 0),
            "local_buffer": Option(_size(MIB, 64 * GIB), 64 * MIB),
            "replicas": Option(_number(1, 16), 1),
            "max_replicas": Option(_number(0, 16), 0),
            "metadata": Option(_metadata, _HANDSHAKE),
            **_LEDGER,
        },
        has_credentials=False,
    ),
    "valkey": Kind(
        "valkey://host:6379?cluster=yes",
        {
            "cluster": Option(_flag, False),
            "tls": Option(_flag, False),
            "ca": Option(_path, ""),
            **_LEDGER,
        },
    ),
    "s3": Kind(
        "s3://bucket/prefix?endpoint=https://host",
        {
            "endpoint": Option(_web, ""),
            "region": Option(_word, "us-east-1"),
            "style": Option(_one_of("path", "virtual"), "path"),
            "insecure": Option(_flag, False),
            **_LEDGER,
        },
    ),
}
"""By the word before the URL's first colon. ``max_replicas`` 0 stands for as many as
``replicas``."""

"""Where the pages are served, and whose requests a page on loopback answers.

A web site that somebody visits can have its own name lead to 127.0.0.1 and so make their browser
ask here, with the site's name as ``Host``. On loopback such requests are refused. Must not know:
what is served. Runs in: the web process, and in whatever checks a setting.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

DEFAULT_HOST = "127.0.0.1"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_MAX_NAME_CHARS = 253


@dataclass(frozen=True)
class Listen:
    """An address to listen at.

    Attributes:
        host: an address or a name, without brackets.
        port: 0 to 65535; 0 lets the kernel choose.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return _is_loopback(self.host)

    def netloc(self, port: int = 0) -> str:
        """As it stands in a URL.

        Args:
            port: the one that the kernel chose, if this one is 0.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{port or self.port}"

    def admits(self, host_header: str) -> bool:
        """Whether a request that names its server so is answered.

        Beyond loopback any name is: who may connect there is for a firewall to say.

        Args:
            host_header: as it came; the port in it does not matter, since tunnels change it.
        """
        return not self.is_loopback or _is_loopback(_without_port(host_header))


def parse(text: str) -> Listen:
    """Reads ``[HOST:]PORT``.

    Args:
        text: ``9177``, ``0.0.0.0:9177``, ``[::1]:9177`` or ``localhost:9177``.

    Raises:
        ValueError: it is none; the text says what is valid.
    """
    host, colon, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: a port is a number from 0 to 65535, as in 9177 or [::1]:9177")
    if not colon:
        return Listen(DEFAULT_HOST, int(port))
    if host.startswith("[") and host.endswith("]"):
        return Listen(str(_address(host[1:-1], text)), int(port))
    if ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, as in [::1]:9177")
    if len(host) > _MAX_NAME_CHARS or not _NAME.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is neither an address nor a name")
    return Listen(host, int(port))


def _address(host: str, text: str) -> ipaddress.IPv6Address:
    try:
        return ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError(f"{text!r}: {host!r} is no IPv6 address") from None


def _without_port(header: str) -> str:
    header = header.strip()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Where spans go, and why they do not get there, in words for a log.

Purpose: an address that can be none is refused before anything is sent; of one that is told, only
what may be told: no user, no password, no query. Must not know: spans, OpenTelemetry. Runs in: the
thread that makes an exporter, and the exporter's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from protocol.logline import printable, public
from protocol.traceparent import ENV_ENDPOINTS

VALID: Final = "http://HOST:PORT or https://…"

_CREDENTIALS: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""With one of these set OpenTelemetry makes the session itself; what fails in it is not seen."""

_MAX_SHOWN: Final = 200
_MAX_CAUSES: Final = 16


def address(environ: Mapping[str, str]) -> str:
    """The collector's address, as it may be told.

    Args:
        environ: of this process.

    Returns:
        Scheme, host, port and path; empty where no variable names one.

    Raises:
        ValueError: it is no address of HTTP.
    """
    for name in ENV_ENDPOINTS:
        if url := environ.get(name, "").strip():
            break
    else:
        return ""
    refused = f"{name} is {_shown(url)}: expected {VALID}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number or too high, half an IPv6 address
        raise ValueError(refused) from None
    if not host or parts.scheme not in ("http", "https"):
        raise ValueError(refused)
    host = f"[{host}]" if ":" in host else host
    place = host if port is None else f"{host}:{port}"
    return printable(f"{parts.scheme}://{place}{parts.path.rstrip('/')}")[:_MAX_SHOWN]


def _shown(url: str) -> str:
    """What is no address, without what may be a password in it."""
    before, slashes, rest = url.partition("//")
    scheme, rest = (before + slashes, rest) if slashes else ("", url)
    query = min((at for at in map(rest.find, "?#") if at >= 0), default=len(rest))
    if "@" in rest[query:]:  # is it of a password, or of the query?
        return "an address that is none"
    return printable(scheme + rest[:query].rpartition("@")[2])[:_MAX_SHOWN]


class Watched:
    """What became of the last request that was sent through a session.

    Attributes:
        why: it failed; empty where it did not, and where nothing was sent.
    """

    def __init__(self) -> None:
        self.why = ""

    def session(self, environ: Mapping[str, str]) -> Any:
        """A session to send through.

        Args:
            environ: of this process.

        Returns:
            One of ``requests``; None where the environment has another made.

        Raises:
            ImportError: there is no such package.
        """
        if any(environ.get(name) for name in _CREDENTIALS):
            return None
        import requests

        made = requests.Session()
        send = made.send

        def noted(*args: Any, **options: Any) -> Any:
            try:
                answer = send(*args, **options)
            except Exception as error:
                self.why = cause(error)
                raise
            is_taken = 200 <= answer.status_code < 400
            word = printable(str(answer.reason or ""))[:_MAX_SHOWN]
            self.why = "" if is_taken else f"HTTP {answer.status_code} {word}".rstrip()
            return answer

        made.send = noted  # type: ignore[method-assign]
        return made


def cause(error: BaseException) -> str:
    """Why a request failed: the system's own word, where there is one under what libraries say.

    Args:
        error: of a library.
    """
    found = list(_causes(error))
    for one in found:
        if "Timeout" in type(one).__name__:
            return "timed out"
    for one in found:
        # A library's error may be an OSError, too; only the system's has a number.
        if isinstance(one, OSError) and one.errno and one.strerror:
            is_plain = one.strerror == os.strerror(one.errno)
            return one.strerror.lower() if is_plain else public(one.strerror)[:_MAX_SHOWN]
    return public(" ".join(str(error).split()))[:_MAX_SHOWN] or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was made of, bounded."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(seen) < _MAX_CAUSES:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and not any(one is other for other in seen):
            seen.append(one)
            yield one
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]

"""The WSGI application: which path answers what, and with which headers.

Read-only: GET and HEAD, and nothing that a request says changes anything. Errors of the figures'
own never end the process; they are answered with 500 and logged. Must not know: sockets, the
server's protocol. Runs in: the threads that serve.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

from server.web import exposition, health
from server.web.history import History
from server.web.listen import Listen
from server.web.told import told
from server.web.watch import View

_log = logging.getLogger("kvkeep.web")

#: As PEP 3333 has them; typing them further gains nothing for a server that is handed over whole.
Environ = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]

_MOMENT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_MAX_FIELDS = 16
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True)
class Page:
    """An answer.

    Attributes:
        code: of HTTP.
        kind: its content type.
        content: its bytes.
    """

    code: int
    kind: str
    content: bytes


class Pages:
    """The application.

    Args:
        listen: where it is served.
        view: what is known; waits for the server's answer at most 2.5 s.
        history: the last hour.
    """

    def __init__(self, listen: Listen, view: Callable[[], View], history: History) -> None:
        self._listen = listen
        self._view = view
        self._history = history
        folder = resources.files("server.web") / "data"
        self._files = {
            path: Page(200, kind, (folder / name).read_bytes())
            for path, (name, kind) in _FILES.items()
        }

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answers one request, as PEP 3333 says."""
        try:
            page = self._page(environ)
        except Exception:  # noqa: BLE001 - a fault in one page is no end of the others
            _log.exception("%r cannot be answered", environ.get("PATH_INFO"))
            page = Page(500, TEXT, b"a fault of kvkeep's own; its log says more\n")
        headers = [("Content-Type", page.kind), ("Content-Length", str(len(page.content)))]
        if page.code == 405:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{page.code} {_PHRASES[page.code]}", [*headers, *HEADERS])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [page.content]

    def _page(self, environ: Environ) -> Page:
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return Page(405, TEXT, b"only GET and HEAD\n")
        if not self._listen.admits(str(environ.get("HTTP_HOST", ""))):
            why = "this page answers to localhost only: its Host header names another server\n"
            return Page(403, TEXT, why.encode())
        path = str(environ.get("PATH_INFO", ""))
        if path in self._files:
            return self._files[path]
        try:
            query = parse_qs(str(environ.get("QUERY_STRING", "")), max_num_fields=_MAX_FIELDS)
        except ValueError:
            return Page(400, TEXT, f"at most {_MAX_FIELDS} fields behind the ?\n".encode())
        if path == "/metrics":
            kind, content = exposition.exposed(self._view(), str(environ.get("HTTP_ACCEPT", "")))
            return Page(200, kind, content)
        if path == "/healthz":
            return _verdict(health.alive(self._view()))
        if path == "/readyz":
            return self._ready(query)
        if path == "/api/status":
            return self._status(query)
        return Page(404, TEXT, b"there are /, /metrics, /healthz, /readyz and /api/status\n")

    def _ready(self, query: Mapping[str, list[str]]) -> Page:
        exclude = query.get("exclude", [])
        unknown = set(exclude) - set(health.CHECKS)
        if unknown:
            known = ", ".join(health.CHECKS)
            return Page(400, TEXT, f"exclude takes {known}\n".encode())
        return _verdict(health.ready(self._view(), exclude))

    def _status(self, query: Mapping[str, list[str]]) -> Page:
        since = query.get("since", ["0"])[-1]
        if not _MOMENT.fullmatch(since):
            return Page(400, TEXT, b"since is a moment in seconds since 1970\n")
        return _json(200, told(self._view(), self._history, time.time(), float(since)))


def _verdict(checks: list[health.Check]) -> Page:
    is_good = all(check.is_good for check in checks)
    return _json(
        200 if is_good else 503,
        {
            "status": "ok" if is_good else "failed",
            "why": [f"{c.name}: {c.text}" for c in checks if not c.is_good],
            "checks": [{"name": c.name, "good": c.is_good, "text": c.text} for c in checks],
        },
    )


def _json(code: int, value: object) -> Page:
    return Page(code, JSON, json.dumps(value, separators=(",", ":")).encode() + b"\n")

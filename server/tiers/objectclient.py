"""The client of an S3 tier: whom it asks, with whose name, and how long.

Must not know: values. Runs in: the porter, when a tier is opened; what gives credentials is called
by any thread of the client.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from server.tieroptions import is_loopback
from server.tiers import credentials
from server.tiers.interface import TierError
from server.tiers.reach import why_not
from server.tierspec import TierSpec

SMALL_S = 2.0
REQUEST_S = 4.0
"""A question about an object is given up after the first, any other request after the second."""

RETRY_S = 0.5
"""A request that failed within this time is tried once more; one that ran into its limit is not."""

REREAD = timedelta(minutes=5)
"""So often a file of credentials is read again: what is in it may have been renewed."""

_VARIABLES = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
_ASKED = re.compile(r"Error performing [A-Z]+ (https?://[^/\s]+)")
_ROLES = ("169.254.", "fd00:ec2:")
"""Where a machine or a pod is told its role."""

_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}
_NO_PAIR = "s3: expected both of access_key_id and secret_access_key"


def bucket_of(spec: TierSpec) -> tuple[str, str]:
    """Name and prefix; the prefix may be empty."""
    name, _, prefix = spec.location.partition("/")
    return name, prefix


def client_of(spec: TierSpec, limit_s: float = REQUEST_S) -> Any:
    """A client for one bucket.

    Args:
        spec: of the kind ``s3``.
        limit_s: for one request, its connection included.

    Returns:
        A store of the library ``obstore``; nothing was asked yet.

    Raises:
        TierError: the endpoint is in the clear and not here, or the credentials cannot be read.
    """
    name, prefix = bucket_of(spec)
    endpoint = spec.text("endpoint")
    is_clear = endpoint.startswith("http://")
    if is_clear and not is_loopback(endpoint) and not spec.flag("insecure"):
        raise TierError(f"s3: {name}: expected an https endpoint, or insecure=yes")
    options: dict[str, Any] = {
        "region": spec.text("region"),
        "virtual_hosted_style_request": spec.text("style") == "virtual",
        # TLS keeps the payload whole, our header proves it; in the clear it is signed.
        "unsigned_payload": not is_clear,
    }
    if endpoint:
        options["endpoint"] = endpoint
    provider = provider_of(spec.credentials, os.environ)
    if provider is not None:
        options["credential_provider"] = provider
    try:
        return importlib.import_module("obstore.store").S3Store(
            name,
            prefix=prefix or None,
            client_options={
                "allow_http": is_clear,
                "timeout": timedelta(seconds=limit_s),
                "connect_timeout": timedelta(seconds=SMALL_S),
                "user_agent": "kvkeep",
            },
            retry_config={
                "max_retries": 1,
                "retry_timeout": timedelta(seconds=RETRY_S),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(milliseconds=200),
                    "base": 2,
                },
            },
            **options,
        )
    except (importlib.import_module("obstore.exceptions").BaseError, ValueError) as error:
        raise TierError(f"s3: {name}: {type(error).__name__} in its options") from None


def why_not_answered(text: str, environ: Mapping[str, str]) -> str:
    """What is behind an error of the client that is no answer of the store.

    Args:
        text: of the error.
        environ: the environment.

    Returns:
        One line, or empty where the text itself says more. May take some seconds.
    """
    asked = _ASKED.search(text)
    if asked is None:
        return ""
    place = urlsplit(asked[1])
    host = place.hostname or ""
    if host.startswith(_ROLES):
        variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return (
            "no credentials: none found, looked in credentials= (a file), in "
            f"{variables}, and asked {host} for a role of this machine or pod"
        )
    if "HTTP error" not in text:
        return ""
    why = ""
    if not any(name.lower() in _PROXIES for name in environ):
        is_tls = place.scheme == "https"
        port = place.port or (443 if is_tls else 80)
        why = why_not(host, port, is_tls, environ.get("SSL_CERT_FILE", ""))
    return f"{asked[1]}: {why or 'no answer in time'}"


def provider_of(path: str, environ: Mapping[str, str]) -> Callable[[], dict[str, Any]] | None:
    """What tells the client its credentials.

    Args:
        path: of a file, which is read again now and then; or empty.
        environ: the environment.

    Returns:
        A function, or None where neither says anything: then the client looks for the role of the
        machine or the pod by itself.

    Raises:
        TierError: the file cannot be read, or only half of a pair is given.
    """
    found = credentials.gather(path, _VARIABLES, environ)
    if not found:
        return None
    held = _pair(found)

    def provide() -> dict[str, Any]:
        nonlocal held
        if not path:
            return {**held, "expires_at": None}
        try:
            held = _pair(credentials.gather(path, _VARIABLES, environ))
        except TierError:  # being replaced: what was read last may still do
            pass
        return {**held, "expires_at": datetime.now(timezone.utc) + REREAD}

    return provide


def _pair(found: Mapping[str, str]) -> dict[str, Any]:
    if not {"access_key_id", "secret_access_key"} <= found.keys():
        raise TierError(_NO_PAIR)
    return {
        "access_key_id": found["access_key_id"],
        "secret_access_key": found["secret_access_key"],
        "token": found.get("session_token"),
    }

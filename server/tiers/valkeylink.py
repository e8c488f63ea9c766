"""The client of a Valkey tier: how it is made, shared by threads and replaced.

Purpose: the client finds its way by itself after a crash. Two things it does not notice: a single
server whose place another took, and a cluster's primary that stopped without a word, whose
connections stay. So a new client is made when a tier is asked for its health and is not well, and
the old one is closed when the last call that uses it has ended: it may not be closed under a call.
Must not know: values. Runs in: the porter, any thread.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from protocol.extras import install
from server.tiers import credentials
from server.tiers.interface import TierError
from server.tiers.reach import why_not
from server.tierspec import TierSpec

REQUEST_MS = 2000
"""A request ends by then, whatever the store does; so does an attempt to connect."""

LOOK_S = 1.0
"""When none of the addresses led anywhere, so long another one of them is looked at."""

_MAX_TEXT = 160
_VARIABLES = {
    "username": "KVKEEP_VALKEY_USERNAME",
    "password": "KVKEEP_VALKEY_PASSWORD",
}


def library() -> Any:
    """The client library.

    Raises:
        TierError: it is not installed.
    """
    try:
        glide = importlib.import_module("glide_sync")
    except ImportError:
        raise TierError(
            f"valkey: the package valkey-glide-sync is missing: {install('valkey')}"
        ) from None
    # Its own log would repeat, on standard error, what the tier's figures say.
    glide.Logger.set_logger_config(glide.LogLevel.OFF)
    return glide


def maker(glide: Any, spec: TierSpec) -> Callable[[], Any]:
    """How a client for a spec is made.

    Args:
        glide: the library.
        spec: of the kind ``valkey``.

    Returns:
        A function that connects, in two seconds or so, or raises TierError.

    Raises:
        TierError: credentials or certificates cannot be read.
    """
    is_cluster = spec.flag("cluster")
    secret = credentials.gather(spec.credentials, _VARIABLES, os.environ)
    if "username" in secret and "password" not in secret:
        raise TierError("valkey: a username without a password")
    login = glide.ServerCredentials(secret["password"], secret.get("username")) if secret else None
    common: dict[str, Any] = {
        "addresses": [glide.NodeAddress(*_host_port(one)) for one in spec.location.split(",")],
        "use_tls": spec.flag("tls"),
        "credentials": login,
        "request_timeout": REQUEST_MS,
        "client_name": "kvkeep",
    }
    details = {"connection_timeout": REQUEST_MS, "tls_config": _tls(glide, spec)}
    if is_cluster:
        kind = glide.GlideClusterClient
        configuration = glide.GlideClusterClientConfiguration(
            **common, advanced_config=glide.AdvancedGlideClusterClientConfiguration(**details)
        )
    else:
        kind = glide.GlideClient
        configuration = glide.GlideClientConfiguration(
            **common, advanced_config=glide.AdvancedGlideClientConfiguration(**details)
        )

    def make() -> Any:
        try:
            client = kind.create(configuration)
        except glide.GlideError as error:
            hint = "; cluster=yes is for clusters only" if is_cluster else ""
            raise TierError(f"valkey: {_unreached(spec) or one_line(error) + hint}") from None
        if not is_cluster:
            _refuse_cluster(glide, client, spec.location)
        return client

    return make


def one_line(error: Exception) -> str:
    """What an error of the library says, for people."""
    return " ".join(str(error).split())[:_MAX_TEXT]


class Link:
    """One client at a time, for many threads.

    Args:
        make: connects, or raises TierError; called at once.

    Raises:
        TierError: as ``make``.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users: dict[int, int] = {}
        self._client = make()

    @contextmanager
    def use(self) -> Iterator[Any]:
        """The client, which stays open until the block is left."""
        with self._lock:
            client = self._client
            self._users[id(client)] = self._users.get(id(client), 0) + 1
        try:
            yield client
        finally:
            self._leave(client)

    def renew(self) -> None:
        """Takes another client from now on.

        Raises:
            TierError: as ``make``; the former one stays.
        """
        fresh = self._make()
        with self._lock:
            former, self._client = self._client, fresh
            is_idle = id(former) not in self._users
        if is_idle:
            former.close()

    def close(self) -> None:
        """Ends it; nobody uses it any more."""
        self._client.close()

    def _leave(self, client: Any) -> None:
        with self._lock:
            left = self._users.pop(id(client)) - 1
            if left:
                self._users[id(client)] = left
            is_over = not left and client is not self._client
        if is_over:
            client.close()


def _refuse_cluster(glide: Any, client: Any, location: str) -> None:
    try:
        said = client.info([glide.InfoSection.CLUSTER])
    except glide.GlideError as error:
        client.close()
        raise TierError(f"valkey: {location}: {one_line(error)}") from None
    if b"cluster_enabled:1" in said:
        client.close()
        raise TierError(f"valkey: {location}: this is a cluster; expected cluster=yes")


def _tls(glide: Any, spec: TierSpec) -> Any:
    path = spec.text("ca")
    if not path:
        return None
    if not spec.flag("tls"):
        raise TierError("valkey: ca without tls=yes")
    try:
        with open(path, "rb") as file:
            return glide.TlsAdvancedConfiguration(root_pem_cacerts=file.read())
    except OSError as error:
        raise TierError(f"valkey: {path}: {error.strerror or error}") from None


def _unreached(spec: TierSpec) -> str:
    """What is wrong with the first address that is not well; the library says too little."""
    is_tls, authority = spec.flag("tls"), spec.text("ca")
    end = time.monotonic() + LOOK_S
    for address in spec.location.split(","):
        if time.monotonic() >= end:
            break
        why = why_not(*_host_port(address), is_tls, authority)
        if why:
            return f"{address}: {why}"
    return ""


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)

"""Why nobody answers under an address, as far as a plain socket can tell.

Purpose: client libraries say ``timed out`` of a wrong port, a wrong name and a wrong protocol
alike; after one has failed, a connection of our own tells them apart. Nothing but a greeting is
sent, never a secret. Must not know: engines. Runs in: the porter, when a tier cannot be opened or
is not well; a thread of its own for the name, which no time limit ends.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

STEP_S = 1.0
"""For each of: the name, the connection, the greeting."""

_PING = b"PING\r\n"


def why_not(host: str, port: int, has_tls: bool, authority: str = "") -> str:
    """Asks the address what is wrong with it.

    Args:
        host: a name or an address, without brackets.
        port: of it.
        has_tls: whether TLS is expected.
        authority: path of the PEM of who signed its certificate; empty for the system's.

    Returns:
        A part of a sentence; empty where the address answers as expected. Takes three times
        ``STEP_S`` at most.
    """
    found = _resolved(host, port)
    if isinstance(found, str):
        return found
    try:
        with socket.socket(found[0], socket.SOCK_STREAM) as connection:
            connection.settimeout(STEP_S)
            connection.connect(found[1])
            if has_tls:
                return _greeted(connection, host, authority)
            return _pinged(connection)
    except TimeoutError:
        return f"no answer within {STEP_S:g} s"
    except ConnectionRefusedError:
        return "connections are refused: nothing listens there"
    except OSError as error:
        return error.strerror or type(error).__name__


def _resolved(host: str, port: int) -> tuple[int, Any] | str:
    """Family and address; or why there is none."""
    found: list[tuple[int, Any] | str] = []

    def ask() -> None:
        try:
            first = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            found.append((first[0], first[4]))
        except (OSError, UnicodeError):
            found.append(f"the name {host} is not known")

    thread = threading.Thread(target=ask, name="kvkeep-name", daemon=True)
    thread.start()
    thread.join(STEP_S)
    return found[0] if found else f"nobody tells the address of {host} within {STEP_S:g} s"


def _greeted(connection: socket.socket, host: str, authority: str) -> str:
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError:  # ssl.SSLError is one
        return f"{authority} holds no certificate"
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}"
    except TimeoutError:
        return "it does not speak TLS: expected an address that does, or none of it"
    except (ssl.SSLError, ConnectionError):
        return "it does not speak TLS: expected an address that does, or none of it"


def _pinged(connection: socket.socket) -> str:
    try:
        connection.sendall(_PING)
        answer = connection.recv(64)
    except TimeoutError:
        return "it takes connections and says nothing"
    except ConnectionError:
        answer = b""
    # An alert of TLS; some say nothing and hang up.
    if not answer or answer[:1] == b"\x15":
        return "it does not answer in the clear: is TLS expected there?"
    return ""
